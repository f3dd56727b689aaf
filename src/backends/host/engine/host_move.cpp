// SPDX-License-Identifier: Apache-2.0
// The host backend: copies and fills.
#include "backend/address.hpp"
#include "backends/common/copy_checks.hpp"
#include "backends/host/host_backend.hpp"
#include "core/errors/make_error.hpp"
#include "core/text/hex.hpp"

namespace weft::host {
namespace {

/// To wake a thread takes 3 to 10 us, and to move this at most one.
bool is_brief(std::uint64_t bytes, std::uint64_t rows = 1) { return bytes <= 4096 && rows <= 64; }

}  // namespace

result<event_ref> host_backend::do_copy(stream_handle handle, const copy_request& request) {
  auto stream = stream_of("copy", handle);
  if (!stream) return std::move(stream).error();
  auto ready = transfers_.prepare(request, (*stream)->device());
  if (!ready) return std::move(ready).error();
  const operation_note note = transfers::note_of(ready->src, ready->dst, request.shape.total());
  auto mark = order_ ? order_->copies(handle, (*stream)->device(), {&request, 1}) : nullptr;
  if (request.wait) {
    std::shared_ptr<const error> failure;
    if (scheduler_.try_inline(**stream, [&] { return transfers_.move(*ready); }, note, failure)) {
      if (mark) order_->host_waited(mark);
      if (failure) return error{*failure};
      return event_ref{};
    }
  }
  const cost price = transfers_.cost_of(*ready);
  auto boxed = std::make_unique<prepared_copy>(std::move(*ready));
  auto stop = request.stop;
  const std::uint64_t rows = request.shape.height * request.shape.depth;  // no overflow: each has a byte
  return submitted(
      scheduler_.submit_or_run(
          **stream, is_brief(note.bytes, rows), [this, boxed = std::move(boxed)] { return transfers_.move(*boxed); },
          note, price, std::move(stop)),
      std::move(mark));
}

result<event_ref> host_backend::do_copy_batch(stream_handle handle, std::span<const copy_request> requests) {
  auto stream = stream_of("copy_batch", handle);
  if (!stream) return std::move(stream).error();
  auto batch = std::make_unique<std::vector<prepared_copy>>();
  batch->reserve(requests.size());
  cost price;
  operation_note note;
  note.kind = trace_kind::copy;
  for (const copy_request& request : requests) {
    if (request.shape.total() == 0) continue;
    auto ready = transfers_.prepare(request, (*stream)->device());
    if (!ready) return std::move(ready).error();
    const cost one = transfers_.cost_of(*ready);
    price = {one.path, price.bytes + one.bytes, one.local_rate};
    note = transfers::note_of(ready->src, ready->dst, price.bytes);
    batch->push_back(std::move(*ready));
  }
  const bool is_short = batch->size() <= 4 && is_brief(price.bytes);
  auto stop = requests.front().stop;
  auto mark = order_ ? order_->copies(handle, (*stream)->device(), requests) : nullptr;
  return submitted(scheduler_.submit_or_run(
                       **stream, is_short,
                       [this, batch = std::move(batch)]() -> work::outcome {
                         for (const prepared_copy& one : *batch) {
                           if (auto cause = transfers_.move(one)) return cause;
                         }
                         return nullptr;
                       },
                       note, price, std::move(stop)),
                   std::move(mark));
}

// On the virtual clock the two steps occupy their own wires, and with faults or a limit each belongs to its own device.
bool host_backend::do_copies_through(device_id, device_id) noexcept {
  return scheduler_.on_wall_clock() && faults_.empty();
}

result<event_ref> host_backend::do_copy_through(stream_handle handle, void* slot, const copy_request& request) {
  auto stream = stream_of("copy_through", handle);
  if (!stream) return std::move(stream).error();
  if (!do_copies_through(device_id{}, device_id{})) return not_offered("copies through a slot");
  auto [in, out] = two_steps(request, slot);
  auto first = transfers_.prepare(in, (*stream)->device());
  if (!first) return std::move(first).error();
  auto second = transfers_.prepare(out, (*stream)->device());
  if (!second) return std::move(second).error();
  struct both {
    prepared_copy in, out;
  };
  const operation_note note = transfers::note_of(first->src, second->dst, request.shape.total());
  auto boxed = std::make_unique<both>(both{std::move(*first), std::move(*second)});
  auto mark = order_ ? order_->copies(handle, (*stream)->device(), {&request, 1}) : nullptr;
  auto stop = request.stop;
  return submitted(scheduler_.submit(
                       **stream,
                       [this, boxed = std::move(boxed)]() -> work::outcome {
                         for (const pin* end : {&boxed->in.src, &boxed->out.dst}) {
                           if (*end) {
                             if (auto cause = scheduler_.lost(end->get()->owner)) return cause;
                           }
                         }
                         return transfers_.move_through(boxed->in, boxed->out);
                       },
                       note, {}, std::move(stop)),
                   std::move(mark));
}

result<event_ref> host_backend::do_fill(stream_handle handle, const fill_request& request) {
  auto stream = stream_of("fill", handle);
  if (!stream) return std::move(stream).error();
  const std::uint64_t extent = request.total();
  auto memory = memory_.find(request.dst, extent);
  if (!memory) return not_allocated("the destination " + hex(request.dst) + " of a fill");
  if (auto wrong = beyond_end("a fill", extent, request.dst, memory->user, memory->size)) return std::move(*wrong);
  if (memory->kind == memory_kind::block) {
    if (const std::string why = memory_.denied((*stream)->device(), *memory, true); !why.empty())
      return make_error(errc::invalid_argument, "a fill of a mapping of a block: " + why);
  }
  struct boxed_fill {
    pin dst;
    fill_request request;
  };
  auto boxed = std::make_unique<boxed_fill>(boxed_fill{pin{std::move(memory)}, request});
  const device_id by = (*stream)->device();
  const cost price{nullptr, request.count * request.pattern_size, transfers_.memory_rate(*boxed->dst.get())};
  operation_note note;
  note.kind = trace_kind::fill;
  note.bytes = price.bytes;
  auto mark = order_ ? order_->fill(handle, by, request) : nullptr;
  return submitted(
      scheduler_.submit_or_run(
          **stream, is_brief(price.bytes),
          [this, by, boxed = std::move(boxed)]() -> work::outcome {
            allocation& a = *boxed->dst.get();
            if (auto cause = common::refused_fill(memory_, a)) return shared_error(std::move(*cause));
            const device_id actor =
                a.kind == memory_kind::device && a.owner != by && !memory_.denied(by, a, true).empty() ? a.owner : by;
            auto to = memory_.resolve(a.kind == memory_kind::mapped ? a.by : actor, a, boxed->request.dst, true);
            if (!to) return shared_error(std::move(to).error());
            const fill_request& f = boxed->request;
            if (f.pattern_size == 1) {
              std::memset(*to, static_cast<int>(f.pattern[0]), f.count);
            } else {
              for (std::uint64_t i = 0; i < f.count; ++i)
                std::memcpy(*to + i * f.pattern_size, f.pattern.data(), f.pattern_size);
            }
            return nullptr;
          },
          note, price, request.stop),
      std::move(mark));
}

}  // namespace weft::host
