// no OpenCL C 3.0: -x cl -cl-std=CL3.0 -target spir64 -Xclang -finclude-default-header -fsyntax-only
__kernel void first(__global int* value) { *value = (int)get_global_id(0); }
