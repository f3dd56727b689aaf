// SPDX-License-Identifier: Apache-2.0
#include "backends/host/order/operation_trace.hpp"

#include <new>
#include <string>
#include <utility>

namespace weft::host {
namespace {

std::string place(device_id id) { return id == device_id{} ? "host" : to_string(id); }

std::string name_of(const operation_note& note) {
  switch (note.kind) {
    case trace_kind::copy:
      return place(note.from) + " → " + place(note.to);
    case trace_kind::host_call:
      return "host call";
    default:
      return std::string{note.name.empty() ? to_string(note.kind) : note.name};
  }
}

}  // namespace

void operation_trace::to(std::shared_ptr<trace_sink> sink) noexcept {
  const std::lock_guard lock{mutex_};
  sink_.swap(sink);
  on_.store(sink_ != nullptr, std::memory_order_release);
}

void operation_trace::add(const operation& op, bool failed) noexcept {
  if (op.stood_from && op.stood_until && *op.stood_from < *op.stood_until) {
    operation_note stood;
    stood.kind = trace_kind::wait;
    std::string name;
    try {
      name = "waits for " +
             (op.until ? std::string{"a value"} : place(op.dependency ? op.dependency->device : device_id{}));
      stood.name = name;
    } catch (const std::bad_alloc&) {
      stood.name = {};  // then it is called by its kind
    }
    add(*op.home, stood, {op.submitted_at.value_or(*op.stood_from), *op.stood_from, *op.stood_until}, failed);
  }
  if (op.note.kind == trace_kind::mark) return;
  add(*op.home, op.note, {op.submitted_at.value_or(op.started), op.started, op.ended}, failed);
}

void operation_trace::add(const host_stream& stream, const operation_note& note, const interval& when,
                          bool failed) noexcept {
  std::shared_ptr<trace_sink> sink;
  {
    const std::lock_guard lock{mutex_};
    sink = sink_;
  }
  if (sink == nullptr) return;
  trace_record made;
  made.kind = note.kind;
  made.device = stream.device();
  made.stream = stream.track();
  try {
    made.name = name_of(note);
  } catch (const std::bad_alloc&) {
    made.name.clear();  // a trace never fails the work that it watches
  }
  made.submitted = when.submitted;
  made.started = when.started;
  made.ended = when.ended;
  made.bytes = note.bytes;
  made.items = note.items;
  made.from = note.from;
  made.to = note.to;
  made.launch = note.launch;
  made.failed = failed;
  sink->add(std::move(made));
}

}  // namespace weft::host
