// SPDX-License-Identifier: Apache-2.0
#include "collective_words.hpp"

#include "weft/collective/communicator.hpp"
#include "weft/memory/scatter.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

namespace weft::tool {

namespace {

constexpr std::array operations{reduction_op::kind::sum, reduction_op::kind::product, reduction_op::kind::min,
                                reduction_op::kind::max, reduction_op::kind::average};

/// Names of the values 0 … count − 1 of an enumeration.
template <class E>
std::vector<std::string_view> names_of(int count) {
  std::vector<std::string_view> names;
  names.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) names.push_back(to_string(static_cast<E>(i)));
  return names;
}

/// The only word of a list. `option` is named when there are more.
result<std::size_t> one_word(std::string_view text, const std::vector<std::string_view>& known, std::string_view what) {
  const auto found = parse_words(text, known, what);
  if (!found) return found.error();
  if (found->size() != 1) {
    return error{errc::invalid_argument, error_scope::call, 0, fmt::format("'{}' is more than one {}", text, what)};
  }
  return found->front();
}

}  // namespace

result<std::vector<collective>> parse_collectives(std::string_view text) {
  std::vector<std::string_view> known = names_of<collective>(collective_count);
  known.emplace_back("all");
  const auto found = parse_words(text, known, "collective");
  if (!found) return found.error();
  const bool all = found->back() == static_cast<std::size_t>(collective_count);
  std::vector<collective> made;
  made.reserve(static_cast<std::size_t>(collective_count));
  for (int i = 0; i < collective_count; ++i) {
    if (all || std::ranges::find(*found, static_cast<std::size_t>(i)) != found->end())
      made.push_back(static_cast<collective>(i));
  }
  return made;
}

result<std::vector<collective_algorithm>> parse_algorithms(std::string_view text) {
  std::vector<std::string_view> known = names_of<collective_algorithm>(collective_algorithm_count);
  known.emplace_back("all");
  const auto found = parse_words(text, known, "algorithm");
  if (!found) return found.error();
  const bool all = found->back() == static_cast<std::size_t>(collective_algorithm_count);
  std::vector<collective_algorithm> made;
  made.reserve(static_cast<std::size_t>(collective_algorithm_count));
  for (int i = 0; i < collective_algorithm_count; ++i) {
    const auto one = static_cast<collective_algorithm>(i);
    const bool named = std::ranges::find(*found, static_cast<std::size_t>(i)) != found->end();
    const bool is_wish = one == collective_algorithm::automatic || one == collective_algorithm::engine;
    if (named || (all && !is_wish)) made.push_back(one);
  }
  return made;
}

result<data_type> parse_type(std::string_view text) {
  if (text == "half") return data_type::float16;
  if (text == "float") return data_type::float32;
  if (text == "double") return data_type::float64;
  const auto found = one_word(text, names_of<data_type>(data_type_count), "type");
  if (!found) return found.error();
  return static_cast<data_type>(*found);
}

result<reduction_op::kind> parse_operation(std::string_view text) {
  std::vector<std::string> names;
  names.reserve(operations.size());
  for (const reduction_op::kind kind : operations) names.push_back(operation_of(kind).name());
  const auto found = one_word(text, {names.begin(), names.end()}, "operation");
  if (!found) return found.error();
  return operations.at(*found);
}

reduction_op operation_of(reduction_op::kind kind) {
  switch (kind) {
    case reduction_op::kind::product:
      return reduce_op::product;
    case reduction_op::kind::min:
      return reduce_op::min;
    case reduction_op::kind::max:
      return reduce_op::max;
    case reduction_op::kind::average:
      return reduction_op::average();
    case reduction_op::kind::sum:
    case reduction_op::kind::user:
      break;
  }
  return reduce_op::sum;
}

result<reduction_order> parse_order(std::string_view text) {
  const auto found = one_word(text, names_of<reduction_order>(2), "order");
  if (!found) return found.error();
  return static_cast<reduction_order>(*found);
}

result<std::vector<int>> parse_devices(std::string_view text) {
  std::vector<int> made;
  for (;;) {
    const auto comma = text.find(',');
    const auto device = parse_device(text.substr(0, comma));
    if (!device) return device.error();
    made.push_back(*device);
    if (comma == std::string_view::npos) return made;
    text.remove_prefix(comma + 1);
  }
}

collective_shape shape_of(collective what, int ranks, std::int64_t elements) {
  collective_shape shape{what, ranks, 0, {elements}};
  if (what == collective::all_reduce || what == collective::reduce || what == collective::broadcast) return shape;
  const auto n = static_cast<std::size_t>(ranks);
  shape.counts.clear();
  shape.counts.reserve(n * n);
  const std::vector<std::size_t> blocks = even_split(static_cast<std::size_t>(elements), n);
  const std::size_t rows = what == collective::all_to_all ? n : 1;
  for (std::size_t from = 0; from < rows; ++from) {
    for (const std::size_t block : blocks) shape.counts.push_back(static_cast<std::int64_t>(block));
  }
  return shape;
}

std::vector<device_id> devices_of_ranks(const topology& machine, const std::vector<int>& named,
                                        std::optional<int> ranks) {
  const int count = machine.device_count();
  std::vector<device_id> made;
  made.reserve(named.size());
  for (const int id : named) made.push_back(require_device(machine, id));
  const int most = communicator::max_size;
  if (!made.empty()) {
    if (made.size() > static_cast<std::size_t>(most)) {
      throw failure{exit_code::usage, fmt::format("{} ranks are more than {}", made.size(), most)};
    }
    return made;
  }
  const int wanted = ranks.value_or(std::min(count, most));
  std::vector<device_id> first;
  const int used = std::min(wanted, count);
  first.reserve(static_cast<std::size_t>(used));
  for (int d = 0; d < used; ++d) first.emplace_back(d);
  const std::vector<device_id> order = neighbour_order(machine, first);
  made.reserve(static_cast<std::size_t>(wanted));
  for (int r = 0; r < wanted; ++r) made.push_back(order[static_cast<std::size_t>(r * used / wanted)]);
  return made;
}

std::int64_t elements_of(std::uint64_t size, data_type type) {
  const std::size_t each = size_of(type);
  if (size < each) {
    throw failure{exit_code::usage, fmt::format("{} hold no {}, which has {}", to_string(bytes{size}), to_string(type),
                                                to_string(bytes{each}))};
  }
  if (size / each > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    throw failure{exit_code::usage, fmt::format("{} hold more {} than a collective counts: give a smaller size",
                                                to_string(bytes{size}), to_string(type))};
  }
  return static_cast<std::int64_t>(size / each);
}

}  // namespace weft::tool
