// no code for AMD GPUs: -x hip --offload-arch=gfx90a --offload-device-only -nogpuinc -nogpulib -S -o /dev/null
__attribute__((global)) void kernel(int* value) { *value = 1; }
