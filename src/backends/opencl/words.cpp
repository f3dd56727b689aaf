// SPDX-License-Identifier: Apache-2.0
// Words of memory that streams of the OpenCL backend write and wait for: by the host, since OpenCL has no command that
// does.
#include "backends/opencl/opencl_backend.hpp"
#include "backends/queued/word_command.hpp"
#include "core/errors/make_error.hpp"

namespace weft::opencl {

result<event_ref> opencl_backend::do_write_value(stream_handle stream, const word_request& request) {
  return submit_word(stream, request, false);
}

result<event_ref> opencl_backend::do_wait_value(stream_handle stream, const word_request& request) {
  return submit_word(stream, request, true);
}

result<event_ref> opencl_backend::submit_word(stream_handle handle, const word_request& request, bool waits) {
  auto order = stream_of(handle);
  if (!order) return std::move(order).error();
  auto memory = memory_.find(request.address);
  const std::byte* const begin = memory ? memory->user : nullptr;
  if (auto cause = detail::misplaced_word(request, begin, memory ? memory->size : 0)) return std::move(*cause);
  const device_id by = (*order)->device();
  std::byte* const at = place_of(*memory, request.address).host;
  if (at == nullptr || !memory_.shares_atomics(memory->owner)) {
    return not_offered("words of memory that streams write and wait for: " + to_string(memory->owner) +
                       " has no fine-grained shared memory with atomics");
  }
  auto refused = [this, by, waits, looked_at = memory.get()]() -> std::optional<error> {
    const std::string why = memory_.denied(by, *looked_at);
    if (why.empty()) return std::nullopt;
    return make_error(
        errc::illegal_access,
        std::string{waits ? "a wait for a value" : "a write of a value"} + " on " + to_string(by) + ": " + why,
        error_scope::device);
  };
  return submitted(**order, std::make_unique<queued::word_command<pin>>(*scheduler_, request, waits, at,
                                                                        pin{std::move(memory)}, std::move(refused)));
}

}  // namespace weft::opencl
