#pragma once
// SPDX-License-Identifier: Apache-2.0
// A kernel with its types erased: what a registry keeps, a launch checks, and a backend compiles or calls.

#include "weft/kernel/define.hpp"
#include "weft/kernel/parameter.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft {

struct kernel_parameter {
  std::string name;
  element_type type = element_type::float32;
  parameter_direction direction = parameter_direction::scalar;
  access_rule access;
  bool is_ring = false;  // one end of a ring: inout uint64, ring_words of them, whole

  friend bool operator==(const kernel_parameter&, const kernel_parameter&) = default;
};

/// A kernel written by hand for each backend; what is left empty is not offered there.
/// Shape: each source defines `entry`, which takes the parameters in order (buffers as pointers to element 0), then for
///   each dimension two int64: the first id and one past the last. `host` may be null.
/// CUDA takes `cuda_function`, else `cuda_image`, else `cuda_source`. The image is PTX, a cubin or a fatbin, as nvcc
///   writes them. The function is for a kernel that nvcc compiled into the program: it gives the CUfunction for the
///   context that is current, as cudaGetFuncBySymbol does, or null; it is called once for each GPU and machine, again
///   after a reset, and until it succeeds.
/// HIP takes `hip_function`, else `hip_image`, else `hip_source`. The image is a code object or a bundle of them, as
///   hipcc --genco writes it; the function gives the hipFunction_t, as hipGetFuncBySymbol does.
struct raw_kernel {
  std::string name;
  std::vector<kernel_parameter> parameters;
  int dimensions = 1;
  host_entry host = nullptr;
  std::string cuda_source;
  std::string hip_source;
  std::string opencl_source;
  std::string entry;
  std::string cuda_image;
  void* (*cuda_function)() = nullptr;
  std::string hip_image;
  void* (*hip_function)() = nullptr;
};

/// A kernel's body once more, for GPUs: neighbouring threads share an item, where one alone would read many elements in
/// a row and its neighbours would read others far from those.
/// Shape: CUDA C++. In the body `item_lanes`, a power of two up to 32, is how many threads share an item, and `lane` is
///   which of them this one is, from 0; they are neighbours in a warp, and run to its end together.
///   weft_lane_behind(value, n) is the value of the thread n lanes further on, which calls it too: 4 or 8 bytes, and
///   its own where there is none. What the body calls stands in `functions`, each a WEFT_FUNCTION.
struct shared_item_form {
  int item_lanes = 1;
  std::string functions;
  std::string body_text;
};

/// One kernel, whatever it was made from.
/// Shape: `host_checked` is null for a raw kernel, whose accesses nobody can see. `hash` covers name, dimensions,
///   parameters and every text, and neither file nor line: two kernels with one hash compute the same if the macros,
///   constants and functions of the program that their bodies name are the same.
struct kernel_code {
  std::string name;
  int dimensions = 1;
  std::vector<kernel_parameter> parameters;
  std::string parameter_text;
  std::string body_text;
  std::string file;
  int line = 0;
  host_entry host = nullptr;
  host_checked_entry host_checked = nullptr;
  std::optional<raw_kernel> raw;
  std::int64_t brief_items = 0;  // so many take no longer than to wake a thread; 0: one may wait for something
  std::optional<shared_item_form> on_gpus;  // in place of body_text, on CUDA and HIP
  std::uint64_t hash = 0;
};

/// What the argument for a ring is made of: a weft_ring, counted in uint64.
inline constexpr std::int64_t ring_words = sizeof(weft_ring) / sizeof(std::uint64_t);
static_assert(sizeof(weft_ring) % sizeof(std::uint64_t) == 0 && alignof(weft_ring) == alignof(std::uint64_t));

/// One parameter as it is written: the word is empty for a scalar, else IN, OUT, INOUT or RING.
struct parameter_words {
  std::string word;
  std::string type;
  std::string access;
  std::string name;

  friend bool operator==(const parameter_words&, const parameter_words&) = default;
};

/// Splits the text of a parameter list, with or without its outer parentheses, at the commas that are not nested.
/// Errors: none; a type of one word without a name, as "float", comes back with an empty name; of several words the
/// last is taken for it.
[[nodiscard]] std::vector<parameter_words> parse_parameters(std::string_view text);

/// The kernel as a sentence begins it: "saxpy(in float x, inout float y, float a)", "echo(ring in, ring out)".
[[nodiscard]] std::string signature_of(const kernel_code& code);

/// Whether one of the parameters is a ring: such a kernel runs on one device, and its OpenCL text needs more than 1.2.
[[nodiscard]] bool has_ring(const kernel_code& code);

/// The type's name in a kernel: "uint8_t", "double".
[[nodiscard]] std::string_view name_of(element_type type);

/// "in", "out", "inout" or "scalar".
[[nodiscard]] std::string_view name_of(parameter_direction direction);

/// Says what is wrong with the arguments of a launch, naming kernel, position and parameter; nothing if they fit.
/// Shape: compares number, type, and direction, where an out or inout argument also serves an in parameter; a ring also
///   takes no other size than its own.
[[nodiscard]] std::optional<std::string> argument_mismatch(const kernel_code& code,
                                                           std::span<const kernel_argument> arguments);

/// What the argument for a ring has to be, and what the one given is: the end of a sentence that names the parameter.
[[nodiscard]] std::string ring_mismatch(element_type given, std::int64_t count);

/// Says what a checked run has found, naming kernel, parameter, item, element and limit.
[[nodiscard]] std::string describe(const kernel_code& code, const access_violation& violation);

/// How many elements belong to one step of the outermost dimension, given that `count` elements cover `outer_extent`
/// steps: the value for kernel_argument::slab. 0, unknown, if they do not divide.
[[nodiscard]] std::int64_t slab_of(const access_rule& access, std::int64_t count, std::int64_t outer_extent);

namespace detail {

struct parameter_kind {
  element_type type;
  parameter_direction direction;
  access_rule access;
  bool is_ring;
};

[[nodiscard]] std::shared_ptr<const kernel_code> build_kernel_code(const kernel_about& about,
                                                                   std::span<const parameter_kind> kinds,
                                                                   host_entry host, host_checked_entry host_checked,
                                                                   std::int64_t brief_items);

template <class... P>
[[nodiscard]] constexpr std::array<parameter_kind, sizeof...(P)> kinds_of(parameter_list<P...>) {
  return {parameter_kind{element_type_of<typename parameter_traits<P>::element>(), parameter_traits<P>::direction,
                         parameter_traits<P>::access, parameter_traits<P>::is_ring}...};
}

}  // namespace detail

/// The type-erased form of a type that WEFT_KERNEL defined.
/// Cost: one allocation and a copy of the text; keep the result.
template <class Kernel>
[[nodiscard]] std::shared_ptr<const kernel_code> make_kernel_code() {
  static constexpr auto kinds = detail::kinds_of(detail::parameters_of<Kernel>{});
  constexpr detail::body_reading body = detail::reading_of<Kernel>;
  // Without loops, rings and functions of the program, an item takes a nanosecond or less for each character.
  constexpr bool is_bounded = body.is_pure && !body.has_loop && !detail::parameters_of<Kernel>::has_ring;
  constexpr std::string_view text = Kernel::weft_expanded_body();
  constexpr std::int64_t brief_items = is_bounded ? std::int64_t{16384 / (text.size() + 1)} : 0;
  return detail::build_kernel_code(Kernel::weft_about(), kinds, host_entry_of<Kernel>, host_checked_entry_of<Kernel>,
                                   brief_items);
}

/// The same kernel with a form of its own for GPUs.
/// Shape: a kernel of one dimension, without rings and reduce() parameters. Both forms compute the same: nothing checks
/// it.
[[nodiscard]] std::shared_ptr<const kernel_code> with_form_for_gpus(const kernel_code& code, shared_item_form form);

/// The type-erased form of a raw kernel.
[[nodiscard]] std::shared_ptr<const kernel_code> make_kernel_code(raw_kernel raw);

}  // namespace weft
