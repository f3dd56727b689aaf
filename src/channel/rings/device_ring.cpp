// SPDX-License-Identifier: Apache-2.0
#include "channel/rings/device_ring.hpp"

#include "channel/queue_progress.hpp"
#include "weft/kernel/define.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"
#include "weft/runtime/stream.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>

namespace weft::detail {
namespace {

// A message of the self-test: a number, and what nothing but that number makes. `done`: how many were moved, and
// whether one was damaged.
WEFT_KERNEL(weft_ring_test_send,
            (WEFT_RING out, uint64_t first, uint64_t count, uint64_t polls, WEFT_OUT(uint64_t, whole) done), {
              uint64_t message[2];
              uint64_t n = first;
              for (; n < first + count; ++n) {
                message[0] = n;
                message[1] = (n + 1) * 0x9e3779b97f4a7c15u;
                if (weft_ring_send(out, message, polls) != WEFT_RING_OK) break;
              }
              done[0] = n - first;
              done[1] = 0;
            });

WEFT_KERNEL(weft_ring_test_receive,
            (WEFT_RING in, uint64_t first, uint64_t count, uint64_t polls, WEFT_OUT(uint64_t, whole) done), {
              uint64_t message[2];
              uint64_t n = first;
              int came_to = WEFT_RING_OK;
              for (; n < first + count; ++n) {
                came_to = weft_ring_receive(in, message, polls);
                if (came_to != WEFT_RING_OK) break;
                if (message[0] != n || message[1] != (n + 1) * 0x9e3779b97f4a7c15u) came_to = WEFT_RING_CORRUPT;
                if (came_to != WEFT_RING_OK) break;
              }
              done[0] = n - first;
              done[1] = came_to == WEFT_RING_CORRUPT ? 1 : 0;
            });

constexpr std::size_t words_apart = isolation / ring_word;
constexpr std::uint64_t least_messages = 16, most_messages = 256;
constexpr std::uint64_t few_polls = 16;  // everything is there already
constexpr std::uint64_t until_stopped = ~std::uint64_t{0};
constexpr std::chrono::seconds patience{5};  // for kernels that ought to run at the same time
/// A ring for the test, in the layout of the ring that is tested.
constexpr ring_shape test_of(const ring_shape& shape, std::uint64_t capacity) {
  return shape.pieces != 0 ? shape_in_pieces(2 * ring_word, capacity)
                           : shape_of(2 * ring_word, ring_word, capacity, false);
}

/// Bytes of a ring's slots, with room for those of the smallest test.
std::size_t room_of(const ring_shape& shape) {
  return round_up(std::max(shape.slots_size(), test_of(shape, least_messages).slots_size()), isolation);
}

template <class Kernel>
const std::shared_ptr<const kernel_code>& code() {
  static const auto* const made = new std::shared_ptr<const kernel_code>{make_kernel_code<Kernel>()};
  return *made;
}

kernel_argument in_memory(void* address, std::int64_t count, parameter_direction direction) {
  kernel_argument made;
  made.type = element_type::uint64;
  made.direction = direction;
  made.address = address;
  made.count = count;
  return made;
}

kernel_argument number(std::uint64_t value) {
  kernel_argument made;
  made.type = element_type::uint64;
  std::memcpy(made.scalar.data(), &value, sizeof value);
  return made;
}

/// One kernel that moves messages with an end, which goes on where that ended.
class move {
 public:
  move(const device& on, const std::shared_ptr<const kernel_code>& kernel, queue_end& end, std::uint64_t first,
       std::uint64_t count, std::uint64_t polls)
      : end_(end), there_(on, end_words{}.size()), done_(on, 2), order_(on) {
    end_words words;
    std::memcpy(words.data(), &end_.ring, sizeof end_.ring);
    copy(there_, words);
    request_.kernel = kernel;
    request_.range.end[0] = 1;
    request_.arguments = {in_memory(there_.data(), ring_words, parameter_direction::inout), number(first),
                          number(count), number(polls), in_memory(done_.data(), 2, parameter_direction::out)};
  }

  void start() {
    backend& driver = state_of(order_.on())->backend_of(order_.on().id());
    static_cast<void>(value_or_raise(driver.launch(order_.native(), std::move(request_))));
  }
  struct outcome {
    std::uint64_t count = 0;
    bool is_damaged = false;
  };
  [[nodiscard]] event ended() const { return order_.record(); }
  [[nodiscard]] outcome wait() {
    order_.synchronize();
    end_words words;
    copy(words, there_);
    std::memcpy(static_cast<void*>(&end_.ring), words.data(), sizeof end_.ring);
    std::array<std::uint64_t, 2> came{};
    copy(came, done_);
    return {came[0], came[1] != 0};
  }

 private:
  queue_end& end_;
  buffer<std::uint64_t> there_, done_;
  launch_request request_;
  stream order_;
};

}  // namespace

device_ring::device_ring(const machine& m, const queue_facts& facts, const ring_shape& shape, bool both_ways)
    : source_(m[facts.source]),
      destination_(m[facts.destination]),
      shape_(shape),
      far_(destination_, (room_of(shape) + sizeof(control_words)) / ring_word, for_running_kernels),
      near_(both_ways ? source_ : destination_, sizeof(control_words) / ring_word, for_running_kernels),
      stops_(destination_, 2 * words_apart),
      stops_window_(
          value_or_raise(state_of(destination_)
                             ->backend_of(destination_.id())
                             .host_window(destination_.id(), stops_.data(), bytes{stops_.size() * ring_word}))) {
  const auto at = [](const buffer<std::uint64_t>& block, std::size_t offset) {
    return block.data() + offset / ring_word;
  };
  credit_ = {at(near_, offsetof(control_words, credit)), both_ways ? source_.id() : destination_.id()};
  fin_ = {at(far_, room_of(shape) + offsetof(control_words, fin)), destination_.id()};
  make_empty();
}

void device_ring::make_empty() {
  stop_test(false);
  fill(far_, std::uint64_t{0});
  fill(near_, std::uint64_t{0});
  const std::array<std::uint64_t, 1> open{WEFT_RING_OPEN};
  copy(far_.subspan(static_cast<std::size_t>(fin_.there - far_.data()), 1), open);
}

ring_view device_ring::sending() const noexcept {
  return {reinterpret_cast<std::byte*>(far_.data()), credit_.there, fin_.there,
          reinterpret_cast<std::uint32_t*>(stops_.data())};
}

ring_view device_ring::receiving() const noexcept {
  return {reinterpret_cast<std::byte*>(far_.data()), credit_.there, fin_.there,
          reinterpret_cast<std::uint32_t*>(stops_.data() + words_apart)};
}

/// Kernels of a test that still wait when this goes end.
struct device_ring::stopped_at_end {
  device_ring& ring;
  ~stopped_at_end() { ring.stop_test(true); }
};

std::string device_ring::test_name() const {
  return to_string(source_.id()) + " to " + to_string(destination_.id()) +
         ": the self-test of a ring in the memory of " + to_string(destination_.id());
}

std::optional<std::string> device_ring::pass(queue_end& tx, queue_end& rx, std::uint64_t first, std::uint64_t count) {
  const auto said = [&](const char* what, std::uint64_t done) {
    return test_name() + " " + what + " " + std::to_string(done) + " of " + std::to_string(count) + " messages";
  };
  const auto alone = [&](const device& on, const std::shared_ptr<const kernel_code>& kernel, queue_end& end) {
    move one{on, kernel, end, first, count, few_polls};
    one.start();
    return one.wait();
  };
  const auto sent = alone(source_, code<weft_ring_test_send>(), tx);
  if (sent.count != count) return said("sent", sent.count);
  const auto got = alone(destination_, code<weft_ring_test_receive>(), rx);
  if (got.count != count) return said("received", got.count);
  return std::nullopt;
}

/// Both at once, as nothing else shows whether a message arrives in parts. Kernels that did not run at the same time
/// are stopped, and show nothing.
std::optional<std::string> device_ring::pass_at_once(queue_end& tx, queue_end& rx, std::uint64_t first,
                                                     std::uint64_t count) {
  move receiving{destination_, code<weft_ring_test_receive>(), rx, first, count, until_stopped};
  move sending{source_, code<weft_ring_test_send>(), tx, first, count, until_stopped};
  {
    const stopped_at_end stopping{*this};  // whichever of them has nobody to work with
    receiving.start();
    sending.start();
    static_cast<void>(receiving.ended().wait_for(patience));
  }
  static_cast<void>(sending.wait());
  const auto got = receiving.wait();
  if (!got.is_damaged) return std::nullopt;
  return test_name() + " received a damaged message after " + std::to_string(got.count) +
         ": the way between them does not deliver 16 bytes at once";
}

void device_ring::stop_test(bool now) noexcept {
  for (const std::size_t word : {std::size_t{0}, words_apart}) {
    auto* const at = reinterpret_cast<std::uint32_t*>(stops_window_.get() + word * ring_word);
    std::atomic_ref{*at}.store(now ? 1 : 0, std::memory_order_release);
  }
}

std::optional<std::string> device_ring::trouble() {
  try {
    const std::uint64_t fit = room_of(shape_) / test_of(shape_, least_messages).stride;
    const ring_shape test = test_of(shape_, std::bit_floor(std::min(fit, most_messages)));
    queue_end tx, rx;
    set_end(tx, sending(), test);
    set_end(rx, receiving(), test);
    // the second lap shows that space came back
    auto why = pass(tx, rx, 0, test.capacity);
    if (!why) why = pass(tx, rx, test.capacity, test.capacity);
    if (!why) why = pass_at_once(tx, rx, 2 * test.capacity, 4 * test.capacity);
    for (const far_word* one : {&fin_, &credit_}) {
      if (why) break;
      auto can = write(*one, 0);
      if (can) static_cast<void>(state_of(source_)->backend_of(one->owner).wait(**can, no_deadline, {}));
      if (can && (*can)->cause()) can = error{*(*can)->cause()};
      if (!can) why = "the ends of a ring with devices could not be closed: " + can.error().what;
    }
    make_empty();
    return why;
  } catch (const error_exception& failed) {
    return test_name() + " failed: " + failed.cause().what;
  }
}

result<event_ref> device_ring::write(const far_word& to, std::uint64_t value) noexcept {
  machine_state& machine = *state_of(source_);
  try {
    const auto order = channels_of(machine).aside(to.owner);
    if (!order) return order.error();
    word_request request;
    request.address = to.there;
    request.size = ring_word;
    request.value = value;
    return machine.backend_of(to.owner).write_value(*order, request);
  } catch (const std::exception& failed) {
    return *queue_error(errc::resource_exhausted, failed.what());
  }
}

// Not waited for: nobody is to be held up by a device. Where it is lost, its kernels are too.
void device_ring::close_writer(std::uint64_t position) noexcept { static_cast<void>(write(fin_, position)); }
void device_ring::close_reader(std::uint64_t position) noexcept {
  static_cast<void>(write(credit_, position | WEFT_RING_CLOSED_BIT));
}

}  // namespace weft::detail
