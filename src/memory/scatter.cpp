// SPDX-License-Identifier: Apache-2.0
#include "weft/memory/scatter.hpp"

#include "core/errors/called_from.hpp"
#include "memory/memory_state.hpp"

#include <algorithm>

namespace weft {

std::vector<std::size_t> even_split(std::size_t count, std::size_t parts, std::source_location where) {
  const called_from here{where};
  if (parts == 0) raise(errc::invalid_argument, "a split into 0 parts");
  std::vector<std::size_t> shares(parts, count / parts);
  for (std::size_t i = 0; i < count % parts; ++i) ++shares[i];
  return shares;
}

namespace detail {

void raise_share(std::string_view what, std::size_t shares, std::size_t whole, std::source_location where) {
  raise(errc::incompatible,
        std::string{what} + ": the parts hold " + std::to_string(shares) + " elements, the whole " +
            std::to_string(whole),
        where);
}

void spread(std::span<const copy_part> parts, const copy_options& options, std::source_location where) {
  if (parts.empty()) return;
  machine_state* state = nullptr;
  for (const copy_part& p : parts) {
    if (p.dst.state != nullptr) state = p.dst.state;
    if (p.src.state != nullptr) state = p.src.state;
  }
  if (state == nullptr) raise(errc::invalid_argument, "no part is device memory", where);
  state->require_open(where);
  if (options.verify != verification::none) {
    raise(errc::invalid_argument,
          "scatter, gather and replicate are not verified: verify a copy of each part, or read the parts back", where);
  }
  const auto device_of_ref = [](const memory_ref& ref) { return ref.state == nullptr ? device_id{} : ref.device; };
  // Each part runs in the default stream of the device that only it uses, so that the parts run side by side; each
  // starts after what the default streams of both its devices hold.
  std::vector<device_id> targets, sources;
  for (const copy_part& p : parts) {
    targets.push_back(device_of_ref(p.dst));
    sources.push_back(device_of_ref(p.src));
  }
  const bool one_target =
      std::all_of(targets.begin(), targets.end(), [&](device_id id) { return id == targets.front(); });
  std::vector<event> done;
  done.reserve(parts.size());  // a copy that is not in it would not be waited for
  std::exception_ptr first;
  const auto self = state->shared_from_this();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    device_id by = one_target ? sources[i] : targets[i];
    if (by.value() < 0) by = one_target ? targets[i] : sources[i];
    const device_id other = by == targets[i] ? sources[i] : targets[i];
    try {
      const stream order = detail::make<device>(self, by).default_stream();
      if (other.value() >= 0 && other != by) {
        const stream beside = detail::make<device>(self, other).default_stream();
        if (!state->backend_of(other).settled(beside.native())) order.wait(beside.record());
      }
      copy_shape shape;
      shape.width = parts[i].src.size;
      done.push_back(copy_in(order, parts[i].dst, parts[i].src, shape, options, where));
    } catch (...) {
      if (!first) first = std::current_exception();
      break;
    }
  }
  try {
    wait_all(done);
  } catch (...) {
    if (!first) first = std::current_exception();
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace detail
}  // namespace weft
