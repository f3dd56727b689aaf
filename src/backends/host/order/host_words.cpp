// SPDX-License-Identifier: Apache-2.0
// The host backend: words of memory that streams write and wait for.
#include "backend/memory_word.hpp"
#include "backend/word_watch.hpp"
#include "backends/host/host_backend.hpp"
#include "core/errors/make_error.hpp"

namespace weft::host {

struct host_backend::word {
  memory_map& table;
  word_request request;
  device_id by;
  bool waits = false;
  pin memory;

  /// Where its device finds it now. Errors: a device without the right is lost by it, as by a kernel's access.
  [[nodiscard]] result<std::byte*> place() const {
    auto at = table.resolve(by, *memory.get(), request.address, !waits);
    if (at) return at;
    error cause = std::move(at).error();
    cause.what =
        std::string{waits ? "a wait for a value" : "a write of a value"} + " on " + to_string(by) + ": " + cause.what;
    if (cause.code == errc::illegal_access) cause.scope = error_scope::device;
    return cause;
  }
  /// What place() refuses is not waited for.
  [[nodiscard]] bool may_go_on() const {
    const auto at = place();
    return !at || detail::compares(request, detail::load_word(*at, request.size));
  }
};

result<std::shared_ptr<const host_backend::word>> host_backend::word_of(device_id by, const word_request& request,
                                                                        bool waits) {
  auto memory = memory_.find(request.address, request.size);
  const std::byte* const begin = memory ? memory->user : nullptr;
  if (auto cause = detail::misplaced_word(request, begin, memory ? memory->size : 0)) return std::move(*cause);
  return std::make_shared<const word>(memory_, request, by, waits, pin{std::move(memory)});
}

result<event_ref> host_backend::do_write_value(stream_handle handle, const word_request& request) {
  auto stream = stream_of("write_value", handle);
  if (!stream) return std::move(stream).error();
  const device_id by = (*stream)->device();
  auto target = word_of(by, request, false);
  if (!target) return std::move(target).error();
  operation_note note;
  note.kind = trace_kind::fill;
  note.bytes = request.size;
  note.name = "value";
  auto mark = order_ ? order_->recorded(handle) : nullptr;
  return submitted(
      scheduler_.submit_or_run(
          **stream, true,
          [this, target = std::move(*target), mark]() -> work::outcome {
            auto at = target->place();
            if (!at) return shared_error(std::move(at).error());
            // a thread of the program may see the value, and know what came before it
            if (mark) order_->host_waited(mark);
            detail::store_word(*at, target->request.size, target->request.value);
            detail::word_written();
            const allocation& memory = *target->memory.get();
            if (memory.owner != target->by && (memory.kind == memory_kind::device || memory.kind == memory_kind::block))
              transfers_.account(target->by, memory.owner, target->request.size);
            return nullptr;
          },
          note),
      std::move(mark));
}

result<event_ref> host_backend::do_wait_value(stream_handle handle, const word_request& request) {
  auto stream = stream_of("wait_value", handle);
  if (!stream) return std::move(stream).error();
  auto source = word_of((*stream)->device(), request, true);
  if (!source) return std::move(source).error();
  auto until = [source = *source] { return source->may_go_on(); };
  auto held = order_ ? order_->waits_for_word(handle) : nullptr;
  auto mark = order_ ? order_->recorded(handle) : nullptr;
  return submitted(scheduler_.submit(
                       **stream,
                       [source = std::move(*source), held = std::move(held)]() -> work::outcome {
                         auto at = source->place();
                         return at ? nullptr : shared_error(std::move(at).error());
                       },
                       {}, {}, {}, {}, std::move(until)),
                   std::move(mark));
}

}  // namespace weft::host
