// SPDX-License-Identifier: Apache-2.0
#include "weft/core/trace.hpp"

#include "core/fnv.hpp"

#include <new>
#include <utility>

namespace weft {

std::string_view to_string(trace_kind kind) {
  switch (kind) {
    case trace_kind::kernel:
      return "kernel";
    case trace_kind::copy:
      return "copy";
    case trace_kind::fill:
      return "fill";
    case trace_kind::host_call:
      return "host_call";
    case trace_kind::wait:
      return "wait";
    case trace_kind::span:
      return "span";
    case trace_kind::mark:
      return "mark";
  }
  return "mark";
}

std::uint64_t trace_hash(std::span<const trace_record> records) {
  detail::fnv hash;
  const auto number = [&hash](auto value) { hash.add_number(static_cast<std::uint64_t>(value)); };
  for (const trace_record& r : records) {
    number(r.kind);
    number(r.device.value());
    number(r.stream);
    number(r.name.size());  // so that no name runs into what follows it
    hash.add_text(r.name);
    number(r.started.count());
    number(r.ended.count());
    number(r.bytes);
    number(r.items);
    number(r.failed);
  }
  return hash.value();
}

void trace_sink::add(trace_record record) noexcept {
  const std::lock_guard lock{mutex_};
  if (records_.size() < capacity_) {
    try {
      records_.push_back(std::move(record));
      return;
    } catch (const std::bad_alloc&) {
      // counted below: a trace never fails the work that it watches
    }
  }
  dropped_.fetch_add(1, std::memory_order_relaxed);
}

std::vector<trace_record> trace_sink::take() {
  const std::lock_guard lock{mutex_};
  return std::exchange(records_, {});
}

}  // namespace weft
