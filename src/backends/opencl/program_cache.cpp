// SPDX-License-Identifier: Apache-2.0
#include "backends/opencl/program_cache.hpp"

#include "backend/kernels/kernel_text.hpp"
#include "backends/common/compiler_words.hpp"

#include <algorithm>
#include <array>

namespace weft::opencl {
namespace {

/// The type's name in OpenCL C: a raw kernel's source knows no int32_t.
std::string_view c_name(element_type type) {
  constexpr std::array<std::string_view, 10> names{"char",   "short", "int",   "long",  "uchar",
                                                   "ushort", "uint",  "ulong", "float", "double"};
  return names[static_cast<std::size_t>(type)];
}

constexpr std::array<std::string_view, 3> axis{"x", "y", "z"};

}  // namespace

std::string shifted_entry(const kernel_code& code) { return "weft_shifted_" + kernel_entry(code); }

std::string shifted_text(const kernel_code& code) {
  std::string declared;
  std::string handed_on;
  const auto add = [](std::string& list, const std::string& text) { list += (list.empty() ? "" : ", ") + text; };
  // NOLINTBEGIN(performance-inefficient-string-concatenation): once for each kernel and device
  for (std::size_t n = 0; n < code.parameters.size(); ++n) {
    const kernel_parameter& p = code.parameters[n];
    const std::string name = "weft_a" + std::to_string(n);
    if (p.direction == parameter_direction::scalar) {
      add(declared, "const " + std::string{c_name(p.type)} + " " + name);
      add(handed_on, name);
      continue;
    }
    const std::string constness = p.direction == parameter_direction::in && !p.is_ring ? "const " : "";
    const std::string shift = "weft_o" + std::to_string(n);
    add(declared, "__global " + constness + std::string{c_name(p.type)} + "* " + name);
    add(declared, "const long " + shift);
    add(handed_on, p.is_ring ? "(__global weft_ring*)(" + name + " + " + shift + ")" : name + " + " + shift);
  }
  for (std::size_t d = 0; d < static_cast<std::size_t>(code.dimensions); ++d) {
    const std::string a{axis[d]};
    const std::string begin = "weft_begin_" + a, end = "weft_end_" + a;
    add(declared, "const long " + begin + ", const long " + end);
    add(handed_on, begin + ", " + end);
  }
  if (has_reduction(code)) {
    add(declared, "__global uchar* weft_scratch");
    add(handed_on, "weft_scratch");
    for (std::size_t n = 0; n < code.parameters.size(); ++n) {
      if (code.parameters[n].access.kind != access_kind::reduce) continue;
      add(declared, "const long weft_c" + std::to_string(n));
      add(handed_on, "weft_c" + std::to_string(n));
    }
    add(declared, "const long weft_step");
    add(handed_on, "weft_step");
  }
  // NOLINTEND(performance-inefficient-string-concatenation)
  return "\n#line 1 \"weft: the wrapper of " + code.name + "\"\n__kernel void " + shifted_entry(code) + "(" + declared +
         ") {\n  " + kernel_entry(code) + "(" + handed_on + ");\n}\n";
}

result<program_handle> program_cache::build(const std::string& text, const kernel_code& code,
                                            const device_place& device) const {
  const char* source = text.c_str();
  cl_int status = CL_SUCCESS;
  program_handle program{
      cl_, cl_->clCreateProgramWithSource(found_.contexts[device.context].context.get(), 1, &source, nullptr, &status)};
  if (status != CL_SUCCESS) return cl_error(status, "a program for the kernel '" + code.name + "'");
  std::string options;
  for (const std::string& option : kernel_options(code, dialect::opencl, device.newest_c)) options += option + " ";
  if (device.is_processor && has_reduction(code)) options += std::string{opencl_lone_lanes_option} + " ";
  // without memory that host and kernels share a ring is an image that commands bring: any OpenCL C does, without
  // atomics
  if (has_ring(code) && !found_.contexts[device.context].atomics) {
    if (device.newest_c < 200) options = "-cl-std=CL1.2 ";
    options += "-D WEFT_RING_BY_COMMANDS ";
  }
  // a grid_order sees the launches of one machine: programs of two that are open must not be one to the driver
  if (found_.contexts[device.context].orders_grids && number_.value() > 0)
    options += "-D WEFT_MACHINE=" + std::to_string(number_.value()) + " ";
  if (device.correctly_rounded_float) options += opencl_correctly_rounded_option;
  status = cl_->clBuildProgram(program.get(), 1, &device.id, options.c_str(), nullptr, nullptr);
  if (status == CL_SUCCESS) return program;
  std::size_t size = 0;
  std::string words;
  if (cl_->clGetProgramBuildInfo(program.get(), device.id, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size) == CL_SUCCESS &&
      size > 1) {
    words.resize(size);
    if (cl_->clGetProgramBuildInfo(program.get(), device.id, CL_PROGRAM_BUILD_LOG, size, words.data(), nullptr) !=
        CL_SUCCESS)
      words.clear();
    words.resize(std::min(words.find('\0'), words.size()));
  }
  error cause =
      common::does_not_compile(code, device.description.name, words.empty() ? std::string{name_of(status)} : words);
  cause.native_code = status;
  return cause;
}

std::pair<cl_int, entry_point> program_cache::make_entry(const program_handle& program, const std::string& name,
                                                         const kernel_code& code, std::size_t context) {
  cl_int status = CL_SUCCESS;
  entry_point made;
  made.kernel = {cl_, cl_->clCreateKernel(program.get(), name.c_str(), &status)};
  // a kernel with rings may run until another launch of it answers: it cannot be waited for
  if (status != CL_SUCCESS || !found_.contexts[context].orders_grids || has_ring(code))
    return {status, std::move(made)};
  const std::lock_guard lock{mutex_};
  std::shared_ptr<grid_order>& order = orders_[{code.hash, context, name}];
  if (!order) order = std::make_shared<grid_order>(cl_);
  made.order = order;
  return {status, std::move(made)};
}

result<std::shared_ptr<compiled_kernel>> program_cache::compile(const kernel_code& code, std::size_t device) {
  const device_place& place = found_.devices[device];
  const std::string text = kernel_text(code, dialect::opencl);
  if (text.empty()) {
    return make_error(errc::unsupported, "the raw kernel '" + code.name +
                                             "' has no source for OpenCL; it runs where one of its sources does");
  }
  auto made = std::make_shared<compiled_kernel>();
  const bool has_memory = std::any_of(code.parameters.begin(), code.parameters.end(), [](const kernel_parameter& p) {
    return p.direction != parameter_direction::scalar;
  });
  auto program = build(has_memory ? text + shifted_text(code) : text, code, place);
  if (!program && code.raw) {
    // a source of the user's that cannot be called from a kernel may still be launched
    error why = std::move(program).error();
    program = build(text, code, place);
    made->why_not_shifted = std::move(why.what);
  }
  if (!program) return std::move(program).error();
  made->program = std::move(*program);
  cl_int status = CL_SUCCESS;
  std::tie(status, made->plain) = make_entry(made->program, kernel_entry(code), code, place.context);
  if (status != CL_SUCCESS) {
    return cl_error(status, "the text of the kernel '" + code.name + "' defines no kernel " + kernel_entry(code),
                    errc::incompatible);
  }
  if (has_memory && made->why_not_shifted.empty()) {
    std::tie(status, made->shifted) = make_entry(made->program, shifted_entry(code), code, place.context);
    if (status != CL_SUCCESS) return cl_error(status, "the wrapper of the kernel '" + code.name + "'");
  }
  if (has_reduction(code)) {
    std::tie(status, made->combine) = make_entry(made->program, combine_entry(code), code, place.context);
    if (status != CL_SUCCESS) return cl_error(status, "the second kernel of the reduction '" + code.name + "'");
  }
  made->largest_sides = place.largest_sides;
  made->units = {place.description.compute_units, place.is_processor, 1};
  made->largest_group = place.largest_group;
  for (const cl_kernel one : {made->plain.kernel.get(), made->shifted.kernel.get(), made->combine.kernel.get()}) {
    std::size_t largest = 0;
    if (one == nullptr) continue;
    if (cl_->clGetKernelWorkGroupInfo(one, place.id, CL_KERNEL_WORK_GROUP_SIZE, sizeof largest, &largest, nullptr) !=
            CL_SUCCESS ||
        largest == 0)
      largest = 1;
    made->largest_group = std::min(made->largest_group, largest);
  }
  made->units.largest_group = static_cast<std::int64_t>(std::min(made->largest_group, made->largest_sides[0]));
  return made;
}

result<std::shared_ptr<compiled_kernel>> program_cache::get(const kernel_code& code, std::size_t device) {
  entry* place = nullptr;
  {
    const std::lock_guard lock{mutex_};
    place = &entries_[{code.hash, device}];
  }
  if (place->is_made.load(std::memory_order_acquire)) return place->made;  // pairs with release below
  const std::lock_guard lock{place->mutex};
  if (place->made) return place->made;
  auto made = compile(code, device);
  if (!made) return made;
  place->made = *made;
  place->is_made.store(true, std::memory_order_release);
  return made;
}

}  // namespace weft::opencl
