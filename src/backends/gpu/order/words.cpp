// SPDX-License-Identifier: Apache-2.0
// Words of memory that streams of the gpu backend write and wait for: the driver's, but for managed memory, which it
// does not take there, and for comparisons that it makes in another way.
#include "backend/memory_word.hpp"
#include "backends/gpu/gpu_backend.hpp"
#include "backends/queued/word_command.hpp"

namespace weft::gpu {
namespace {

std::string name_of(bool waits) { return waits ? "a wait for a value" : "a write of a value"; }

/// Why `by` may not use the word now, if so: as a kernel with such an argument.
std::optional<error> refused(const memory_map& table, const allocation& memory, device_id by, bool waits) {
  if (auto cause = memory_map::gone_with_reset(memory)) return cause;
  if (auto cause = memory.broken()) return cause;
  const std::string why = table.denied(by, memory, !waits);
  if (why.empty()) return std::nullopt;
  return make_error(errc::illegal_access, name_of(waits) + " on " + to_string(by) + ": " + why, error_scope::device);
}

unsigned flag_of(word_comparison comparison) {
  switch (comparison) {
    case word_comparison::greater_equal:
      return wait_value_geq;
    case word_comparison::equal:
      return wait_value_eq;
    case word_comparison::bits_any:
      return wait_value_and;
    case word_comparison::nor:
      return wait_value_nor;
  }
  return wait_value_geq;
}

bool is_short(const word_request& request) { return request.size == sizeof(std::uint32_t); }

class wait_command final : public queued::command {
 public:
  wait_command(stream_driver& streams, const memory_map& table, const word_waits::wait& wanted, device_id by,
               bool flushes, pin memory)
      : command(place::driver),
        streams_(streams),
        table_(table),
        wanted_(wanted),
        by_(by),
        flags_(flag_of(wanted.request.comparison) | (flushes ? wait_value_flush : 0U)),
        memory_(std::move(memory)) {
    note.kind = trace_kind::wait;
  }

  [[nodiscard]] result<void> hand_over(queued::native_queue queue, queued::native_event* last) override {
    if (auto cause = refused(table_, *memory_.get(), by_, true)) return std::move(*cause);
    auto into = streams_.begin(queue);
    if (!into) return std::move(into).error();
    const driver& cu = table_.cu();
    word_waits::wait wanted = wanted_;
    CUresult status = cu.cuEventCreate(&wanted.behind, event_disable_timing);
    if (status != CUDA_SUCCESS) return cu_error(cu, status, name_of(true) + " on " + to_string(by_));
    auto added = streams_.words().add(wanted);
    if (!added) {
      static_cast<void>(cu.cuEventDestroy(wanted.behind));
      return std::move(added).error();
    }
    id_ = *added;
    status = is_short(wanted_.request)
                 ? cu.cuStreamWaitValue32(into->stream(), wanted_.at, static_cast<std::uint32_t>(wanted_.request.value),
                                          flags_)
                 : cu.cuStreamWaitValue64(into->stream(), wanted_.at, wanted_.request.value, flags_);
    if (status != CUDA_SUCCESS) {
      static_cast<void>(streams_.words().remove(std::exchange(id_, 0), std::move(memory_)));
      return cu_error(cu, status, name_of(true) + " on " + to_string(by_));
    }
    status = cu.cuEventRecord(wanted.behind, into->stream());
    if (status != CUDA_SUCCESS) {
      streams_.words().give_up_one(id_, false);
      return cu_error(cu, status, name_of(true) + " on " + to_string(by_));
    }
    auto mark = into->finish();
    if (!mark) {
      streams_.words().give_up_one(id_, true);  // nobody could tell when it has ended
      return std::move(mark).error();
    }
    *last = *mark;
    return {};
  }
  [[nodiscard]] bool was_given_up() noexcept override {
    forget();
    return given_up_;
  }
  void let_go() noexcept override {
    if (id_ != 0) streams_.words().abandon(std::exchange(id_, 0), std::move(memory_));
    memory_ = {};
  }
  [[nodiscard]] std::string name() const override { return "waits for a value"; }

 private:
  void forget() noexcept {
    if (id_ != 0) given_up_ = streams_.words().remove(std::exchange(id_, 0), std::move(memory_));
  }

  stream_driver& streams_;
  const memory_map& table_;
  const word_waits::wait wanted_;
  const device_id by_;
  const unsigned flags_;
  pin memory_;
  std::uint64_t id_ = 0;  // 0: the driver does not have it
  bool given_up_ = false;
};

}  // namespace

result<event_ref> gpu_backend::do_write_value(stream_handle stream, const word_request& request) {
  return submit_word(stream, request, false);
}

result<event_ref> gpu_backend::do_wait_value(stream_handle stream, const word_request& request) {
  return submit_word(stream, request, true);
}

/// Why the driver has no such operation on a device, if so.
std::optional<error> gpu_backend::without_word(device_id by, const word_request& request, bool waits) const {
  const gpu_place& gpu = found_.gpu_of(local(by));
  const auto lacks = [&](const std::string& what) {
    return make_error(errc::unsupported, to_string(by) + " (" + gpu.name + ") has no stream memory operations " + what);
  };
  if (!gpu.has_short_words) return lacks("with this driver: a newer one may have them");
  if (!is_short(request) && !gpu.has_long_words) return lacks("for words of 8 bytes: take one of 4");
  if (waits && request.comparison == word_comparison::nor && !gpu.compares_by_nor)
    return lacks("that compare by nor: take another comparison");
  return std::nullopt;
}

result<event_ref> gpu_backend::submit_word(stream_handle handle, const word_request& request, bool waits) {
  auto order = stream_of(handle);
  if (!order) return std::move(order).error();
  auto memory = memory_.find(request.address, request.size);
  const std::byte* const begin = memory ? memory->user : nullptr;
  if (auto cause = detail::misplaced_word(request, begin, memory ? memory->size : 0)) return std::move(*cause);
  const device_id by = (*order)->device();
  const allocation& root = *common::root_of(*memory, memory->user).first;
  const CUdeviceptr at = gpu_address(*memory, request.address);
  std::byte* const host = root.host == nullptr ? nullptr : root.host + (at - root.gpu);
  const auto by_the_host = [&] {
    auto denied = [this, by, waits, looked_at = memory.get()] { return refused(memory_, *looked_at, by, waits); };
    return submitted(**order, std::make_unique<queued::word_command<pin>>(*scheduler_, request, waits, host,
                                                                          pin{std::move(memory)}, std::move(denied)));
  };
  if (root.kind == memory_kind::unified) return by_the_host();
  if (auto cause = without_word(by, request, waits)) return std::move(*cause);
  if (waits && request.comparison == word_comparison::greater_equal && !cu_->by->wraps_words) {
    if (host != nullptr) return by_the_host();
    return make_error(errc::unsupported, std::string{cu_->by->name} +
                                             " compares words as numbers that do not wrap around: wait for equal, or "
                                             "for a word of pinned memory, which the host waits for");
  }
  if (waits) {
    const word_waits::wait wanted{local(by), at, host, request, nullptr};
    return submitted(**order, std::make_unique<wait_command>(*streams_, memory_, wanted, by,
                                                             found_.gpu_of(local(by)).flushes_remote_writes,
                                                             pin{std::move(memory)}));
  }
  auto made = std::make_unique<queued::driver_command<pin>>([this, by, at, request, looked_at = memory.get()](
                                                                queued::native_queue queue,
                                                                queued::native_event* last) -> result<void> {
    if (auto cause = refused(memory_, *looked_at, by, false)) return std::move(*cause);
    auto into = streams_->begin(queue);
    if (!into) return std::move(into).error();
    const CUresult status =
        is_short(request) ? cu_->cuStreamWriteValue32(into->stream(), at, static_cast<std::uint32_t>(request.value), 0)
                          : cu_->cuStreamWriteValue64(into->stream(), at, request.value, 0);
    if (status != CUDA_SUCCESS) return cu_error(*cu_, status, name_of(false) + " on " + to_string(by));
    auto ended = into->finish();
    if (!ended) return std::move(ended).error();
    *last = *ended;
    return {};
  });
  made->note.kind = trace_kind::fill;
  made->note.bytes = request.size;
  made->memory.emplace_back(std::move(memory));
  return submitted(**order, std::move(made));
}

}  // namespace weft::gpu
