// SPDX-License-Identifier: Apache-2.0
// queue/opencl/…: a thread of the host and a kernel of an OpenCL device. Over one memory the kernel stays and answers
// what comes: the round trip of one message. Over buffers a launch brings and takes messages: the round trip of a
// launch. Bar: the first under 0.5 us. With no OpenCL device: POCL_DEVICES="pthread pthread" and PoCL.

#include "backends/opencl/factory.hpp"
#include "paired.hpp"
#include "weft/channel/kernel_end.hpp"
#include "weft/exec/launch.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using namespace weft::bench;

// Adds one to every word.
WEFT_KERNEL(bench_answers,
            (WEFT_RING in, WEFT_RING out, uint64_t count, uint64_t polls, WEFT_OUT(uint64_t, whole) done), {
              uint32_t message[1024];
              uint64_t n = 0;
              for (; n < count; ++n) {
                if (weft_ring_receive(in, &message, polls) != WEFT_RING_OK) break;
                for (uint32_t word = 0; word < in->bytes / 4; ++word) {
                  message[word] = message[word] + 1u;
                }
                if (weft_ring_send(out, &message, polls) != WEFT_RING_OK) break;
              }
              done[0] = n;
            });
WEFT_KERNEL(bench_nothing, (WEFT_INOUT(uint64_t, whole) done), { done[0] = done[0] + 1; });

constexpr std::uint64_t polls = 20'000'000'000;  // longer than this program: whoever waits that long has lost the other

[[noreturn]] void give_up(const char* why) {
  std::fprintf(stderr, "queue/opencl: %s\n", why);
  std::exit(1);
}

template <std::size_t Bytes>
struct payload {
  std::array<std::uint32_t, Bytes / 4> word;
  void fill(std::uint32_t number) {
    for (std::size_t i = 0; i < word.size(); ++i) word[i] = number * 2654435761U + static_cast<std::uint32_t>(i);
  }
  [[nodiscard]] bool answers(std::uint32_t number) const {
    std::uint32_t wrong = 0;
    for (std::size_t i = 0; i < word.size(); ++i)
      wrong |= word[i] ^ (number * 2654435761U + static_cast<std::uint32_t>(i) + 1U);
    return wrong == 0;
  }
};

/// Both queues of a conversation with kernels of device 0.
template <std::size_t Bytes>
struct conversation {
  explicit conversation(const weft::machine& m)
      : there{m, weft::device_id{m.device_count() - 1}, weft::device_id{0}, options()},
        back{m, weft::device_id{0}, weft::device_id{m.device_count() - 1}, options()},
        order{m[0]},
        done{m[0], 1} {}
  static weft::queue_options options() {
    weft::queue_options made;
    made.capacity = 64;
    made.wait_policy = weft::waiting::spin;  // a kernel wakes nobody: who sleeps looks again after 100 us
    return made;
  }

  weft::message_queue<payload<Bytes>> there, back;
  weft::sender<payload<Bytes>> tx = there.open_sender();
  weft::receiver<payload<Bytes>> rx = back.open_receiver();
  weft::receiver<payload<Bytes>> kernels_rx = there.open_receiver();
  weft::sender<payload<Bytes>> kernels_tx = back.open_sender();
  weft::kernel_end in{kernels_rx}, out{kernels_tx};
  weft::stream order;
  weft::buffer<std::uint64_t> done;
};

void tell(const std::string& name, const spread& t, std::size_t samples, const options& how) {
  if (how.json) {
    std::printf(
        "{\"name\":\"%s\",\"seconds\":{\"median\":%.6g,\"p5\":%.6g,\"p95\":%.6g,\"samples\":%zu},"
        "\"verified\":true}\n",
        name.c_str(), t.median, t.p5, t.p95, samples);
  } else {
    std::printf("%-44s p50 %9.1f ns   (p5 %9.1f, p95 %9.1f; %zu round trips)\n", name.c_str(), t.median * 1e9,
                t.p5 * 1e9, t.p95 * 1e9, samples);
  }
}

/// One message at a time to a kernel that stays.
template <std::size_t Bytes>
void stay(const weft::machine& m, const options& how) {
  conversation<Bytes> talk{m};
  const auto count = static_cast<std::uint32_t>(how.samples) * 2000U;
  const auto answering = weft::launch<bench_answers>(talk.order, weft::range(1), talk.in, talk.out,
                                                     std::uint64_t{count}, polls, talk.done);
  std::vector<double> seconds;
  seconds.reserve(count);
  payload<Bytes> message{};
  double before = now();
  for (std::uint32_t n = 0; n < count; ++n) {
    message.fill(n);
    if (talk.tx.send(message) != weft::queue_status::ok) give_up("a message could not be sent");
    if (talk.rx.receive(message) != weft::queue_status::ok) give_up("no answer came");
    if (!message.answers(n)) give_up("a wrong answer came");
    const double after = now();
    if (n >= count / 10) seconds.push_back(after - before);  // the first: the kernel is compiled and begins
    before = after;
  }
  answering.wait();
  tell("queue/opencl/kernel stays/round trip/" + std::to_string(Bytes) + " B", spread_of(seconds), seconds.size(), how);
}

/// Messages to a kernel that is launched for them.
template <std::size_t Bytes>
void come_and_go(const weft::machine& m, std::uint32_t messages, const options& how) {
  conversation<Bytes> talk{m};
  std::uint32_t number = 0;
  payload<Bytes> message{};
  const auto round = [&] {
    for (std::uint32_t n = 0; n < messages; ++n) {
      message.fill(number + n);
      if (talk.tx.try_send(message) != weft::queue_status::ok) give_up("a message could not be sent");
    }
    weft::launch<bench_answers>(talk.order, weft::range(1), talk.in, talk.out, std::uint64_t{messages},
                                std::uint64_t{1}, talk.done)
        .wait();
    for (std::uint32_t n = 0; n < messages; ++n) {
      if (talk.rx.try_receive(message) != weft::queue_status::ok) give_up("no answer came");
      if (!message.answers(number + n)) give_up("a wrong answer came");
    }
    number += messages;
  };
  round();
  weft::launch<bench_nothing>(talk.order, weft::range(1), talk.done).wait();
  compare("queue/opencl/kernel comes and goes/" + std::to_string(messages) + " x " + std::to_string(Bytes) +
              " B there and back",
          {{"launch with two lent ends", [&] { return seconds_of(50, round); }},
           {"launch without queues",
            [&] {
              return seconds_of(50, [&] { weft::launch<bench_nothing>(talk.order, weft::range(1), talk.done).wait(); });
            }}},
          how);
}

weft::result<std::unique_ptr<weft::backend>> open_buffers(const weft::backend_options& wanted) noexcept {
  weft::opencl::settings with;
  with.shared_memory = false;
  return weft::opencl::open_with(wanted, with);
}

}  // namespace

int main(int argc, char** argv) {
  const options how = parse(argc, argv);
  print_machine(how);
  setenv("POCL_DEVICES", "pthread pthread", 0);  // NOLINT(concurrency-mt-unsafe): before there are threads
  weft::machine_options chosen;
  chosen.more_backends = {{weft::backend_kind::opencl, "opencl_shared", &weft::opencl::open},
                          {weft::backend_kind::opencl, "opencl_buffers", &open_buffers}};
  try {
    chosen.backend = "opencl_shared";
    const weft::machine shared{chosen};
    if (conversation<8>{shared}.in.visibility() == weft::ring_visibility::immediate) {
      stay<8>(shared, how);
      stay<56>(shared, how);
      stay<256>(shared, how);
      stay<4096>(shared, how);
    } else {
      std::printf("queue/opencl/kernel stays: absent, the devices share no memory with the host\n");
    }
    chosen.backend = "opencl_buffers";
    const weft::machine buffers{chosen};
    come_and_go<8>(buffers, 1, how);
    come_and_go<56>(buffers, 1, how);
    come_and_go<56>(buffers, 64, how);
    come_and_go<4096>(buffers, 64, how);
  } catch (const weft::error_exception& absent) {
    std::printf("queue/opencl: %s\n", to_string(absent.cause()).c_str());
  }
  return 0;
}
