// SPDX-License-Identifier: Apache-2.0
// gpu/…: the CUDA backend against plain calls of the driver, in one context of one GPU, turn about. Bars, as ratios of
// what the plain calls reach: copies 0.98, from another process too, staging between logical devices 0.9 of the slower
// link, the kernel of a reduction 0.9 of the copy bandwidth of the chip; a launch at most 1 us above cuLaunchKernel; a
// round trip through queues at most 3 us. Without a GPU it says so. On a virtual driver it runs as a check of itself:
// its figures are then of the host. Each figure is printed as soon as it is known, and --part NAME measures one of the
// parts below alone: a driver that hangs then costs the rest of a part. WEFT_BENCH_CUB names the library made of
// cub_sum.cu.

#include "backend/kernels/kernel_text.hpp"
#include "backends/gpu/cuda/cuda.hpp"
#include "backends/gpu/devices/discovery.hpp"
#include "backends/gpu/hip/hip.hpp"
#include "paired.hpp"
#include "weft/channel/kernel_end.hpp"
#include "weft/channel/message_queue.hpp"
#include "weft/exec/kernels.hpp"
#include "weft/exec/launch.hpp"
#include "weft/exec/launch_run.hpp"
#include "weft/exec/reduce.hpp"
#include "weft/memory/buffer.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/shared_memory.hpp"
#include "weft/runtime/device_scope.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <functional>
#include <memory>
#include <poll.h>
#include <string>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace {

using namespace weft::bench;
using weft::range;

WEFT_KERNEL(gpu_bench_nothing, (WEFT_INOUT(float) values), { values[i] = values[i]; });
WEFT_KERNEL(gpu_bench_copy, (WEFT_IN(float) from, WEFT_OUT(float) to), { to[i] = from[i]; });
WEFT_KERNEL(gpu_bench_answers,
            (WEFT_RING in, WEFT_RING out, uint64_t count, uint64_t polls, WEFT_OUT(uint64_t, whole) done), {
              uint64_t word = 0;
              uint64_t n = 0;
              for (; n < count; ++n) {
                if (weft_ring_receive(in, &word, polls) != WEFT_RING_OK) break;
                word = word + 1;
                if (weft_ring_send(out, &word, polls) != WEFT_RING_OK) break;
              }
              done[0] = n;
            });

// Kernels that take messages of so many words, each of which says the message's number: all of them are looked at, or
// the first and the last.
#define GPU_BENCH_TAKES(name, words, step)                                                            \
  WEFT_KERNEL(name, (WEFT_RING in, uint64_t count, uint64_t polls, WEFT_OUT(uint64_t, whole) done), { \
    uint64_t message[words];                                                                          \
    uint64_t n = 0;                                                                                   \
    uint64_t wrong = 0;                                                                               \
    for (; n < count; ++n) {                                                                          \
      if (weft_ring_receive(in, message, polls) != WEFT_RING_OK) break;                               \
      for (int32_t k = 0; k < (words); k += (step)) wrong += message[k] == n ? 0 : 1;                 \
    }                                                                                                 \
    done[0] = n;                                                                                      \
    done[1] = wrong;                                                                                  \
  })
GPU_BENCH_TAKES(gpu_bench_takes_1, 1, 1);
GPU_BENCH_TAKES(gpu_bench_takes_8, 8, 7);
GPU_BENCH_TAKES(gpu_bench_takes_64, 64, 63);
GPU_BENCH_TAKES(gpu_bench_takes_512, 512, 511);
GPU_BENCH_TAKES(gpu_bench_checks_512, 512, 1);

constexpr std::uint64_t polls = 20'000'000'000;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing runs yet
  return value != nullptr ? value : "";
}

/// WEFT_BACKEND=hip: AMD's GPUs; CUDA's without it.
const weft::gpu::vendor& maker() {
  return variable("WEFT_BACKEND") == "hip" ? weft::gpu::amd::hip() : weft::gpu::cuda();
}
std::string driver_library() {
  const std::string named = variable(maker().driver.variable);
  return named.empty() ? maker().driver.usual : named;
}

[[noreturn]] void leave_out(const std::string& why) {
  std::printf("gpu: left out: %s\n", why.c_str());
  std::exit(0);
}

/// The plain calls, in the primary context that the backend uses too.
class plain_gpu {
 public:
  explicit plain_gpu(std::shared_ptr<const weft::gpu::driver> cu) : cu_(std::move(cu)) {
    check(cu_->cuDevicePrimaryCtxRetain(&context_, 0));
    check(cu_->cuCtxSetCurrent(context_));
    check(cu_->cuStreamCreateWithPriority(&stream_, weft::gpu::stream_non_blocking, 0));
  }
  plain_gpu(const plain_gpu&) = delete;
  plain_gpu& operator=(const plain_gpu&) = delete;
  ~plain_gpu() {
    cu_->cuStreamDestroy(stream_);
    cu_->cuDevicePrimaryCtxRelease(0);
  }

  static void check(weft::gpu::CUresult status) {
    if (status == weft::gpu::CUDA_SUCCESS) return;
    std::fprintf(stderr, "gpu: the plain calls failed: CUDA error %d\n", status);
    std::exit(1);
  }
  void finish() const { check(cu_->cuStreamSynchronize(stream_)); }
  /// A call that submits to the stream, and the wait for it.
  [[nodiscard]] contender waited_for(std::string name, std::function<weft::gpu::CUresult()> call) const {
    return {std::move(name), [this, call = std::move(call)] {
              return seconds_of(1, [&] {
                check(call());
                finish();
              });
            }};
  }
  [[nodiscard]] weft::gpu::CUstream stream() const { return stream_; }
  const weft::gpu::driver* operator->() const { return cu_.get(); }

 private:
  std::shared_ptr<const weft::gpu::driver> cu_;
  weft::gpu::CUcontext context_ = nullptr;
  weft::gpu::CUstream stream_ = nullptr;
};

weft::gpu::CUdeviceptr address_of(const void* p) { return reinterpret_cast<weft::gpu::CUdeviceptr>(p); }

void check_pattern(const std::vector<float>& got, const char* what) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == static_cast<float>(i % 1000)) continue;
    std::fprintf(stderr, "gpu: %s: wrong data at element %zu\n", what, i);
    std::exit(1);
  }
}

contender by_weft(std::function<void()> copy) {
  return {"weft::copy", [copy = std::move(copy)] { return seconds_of(1, copy); }};
}

void copies(const weft::machine& m, const plain_gpu& plain, const options& how, std::size_t size) {
  const std::size_t n = size / sizeof(float);
  const weft::buffer<float> a{m[0], n}, b{m[0], n};
  const weft::pinned_buffer<float> host{m[0], n};
  for (std::size_t i = 0; i < n; ++i) host.data()[i] = static_cast<float>(i % 1000);
  weft::copy(a, host);
  const std::string amount = std::to_string(size >> 20) + "MiB";
  const auto bytes = static_cast<double>(size);
  const contender on_device = plain.waited_for("cuMemcpyDtoDAsync", [&] {
    return plain->cuMemcpyDtoDAsync(address_of(b.data()), address_of(a.data()), size, plain.stream());
  });
  const contender to_device = plain.waited_for("cuMemcpyHtoDAsync", [&] {
    return plain->cuMemcpyHtoDAsync(address_of(b.data()), host.data(), size, plain.stream());
  });
  const contender to_host = plain.waited_for("cuMemcpyDtoHAsync", [&] {
    return plain->cuMemcpyDtoHAsync(host.data(), address_of(b.data()), size, plain.stream());
  });
  compare("gpu/copy/device/" + amount, {by_weft([&] { weft::copy(b, a); }), on_device}, how, bytes);
  compare("gpu/copy/from_pinned/" + amount, {by_weft([&] { weft::copy(b, host); }), to_device}, how, bytes);
  compare("gpu/copy/to_pinned/" + amount, {by_weft([&] { weft::copy(host, b); }), to_host}, how, bytes);
  std::vector<float> got(n);
  weft::copy(got, b);
  check_pattern(got, "copies");
}

/// The threads of a kernel in the place of the engine that copies.
void copies_by_kernel(const weft::machine& m, const plain_gpu& plain, const options& how, std::size_t size) {
  const std::size_t n = size / sizeof(float);
  const weft::buffer<float> a{m[0], n}, b{m[0], n};
  const weft::pinned_buffer<float> host{m[0], n};
  for (std::size_t i = 0; i < n; ++i) host.data()[i] = static_cast<float>(i % 1000);
  weft::copy(a, host);
  const weft::stream order{m[0]};
  const auto by_kernel = [&](const auto& from) {
    return contender{"kernel", [&] {
                       return seconds_of(1, [&] {
                         launch<gpu_bench_copy>(order, range(static_cast<std::int64_t>(n)), from, b).wait();
                       });
                     }};
  };
  const std::string amount = std::to_string(size >> 20) + "MiB";
  const std::string title = ": a kernel that copies, against the copy engine";
  const auto bytes = static_cast<double>(size);
  compare("gpu/copy/kernel/" + amount + title,
          {by_kernel(a), plain.waited_for("cuMemcpyDtoDAsync",
                                          [&] {
                                            return plain->cuMemcpyDtoDAsync(address_of(b.data()), address_of(a.data()),
                                                                            size, plain.stream());
                                          })},
          how, bytes);
  compare("gpu/copy/kernel_from_pinned/" + amount + title,
          {by_kernel(host), plain.waited_for("cuMemcpyHtoDAsync",
                                             [&] {
                                               return plain->cuMemcpyHtoDAsync(address_of(b.data()), host.data(), size,
                                                                               plain.stream());
                                             })},
          how, bytes);
  std::vector<float> got(n);
  weft::copy(got, b);
  check_pattern(got, "copies by a kernel");
}

/// Host memory that weft made and registered, and the driver's own kind: the same plain calls with both.
void pinned_kinds(const weft::machine& m, const plain_gpu& plain, const options& how, std::size_t size) {
  const std::size_t n = size / sizeof(float);
  const weft::buffer<float> b{m[0], n};
  const weft::pinned_buffer<float> registered{m[0], n};
  void* allocated = nullptr;
  plain_gpu::check(
      plain->cuMemHostAlloc(&allocated, size, weft::gpu::host_alloc_portable | weft::gpu::host_alloc_device_map));
  for (std::size_t i = 0; i < n; ++i) registered.data()[i] = static_cast<float>(i % 1000);
  std::copy_n(registered.data(), n, static_cast<float*>(allocated));
  const auto from = [&](const char* name, const void* host) {
    return plain.waited_for(
        name, [&, host] { return plain->cuMemcpyHtoDAsync(address_of(b.data()), host, size, plain.stream()); });
  };
  const auto to = [&](const char* name, void* host) {
    return plain.waited_for(
        name, [&, host] { return plain->cuMemcpyDtoHAsync(host, address_of(b.data()), size, plain.stream()); });
  };
  const std::string amount = std::to_string(size >> 20) + "MiB";
  const std::string title = ": plain calls, with the pinned memory of weft and with the driver's";
  const auto bytes = static_cast<double>(size);
  compare("gpu/pinned/from/" + amount + title,
          {from("registered by weft", registered.data()), from("cuMemHostAlloc", allocated)}, how, bytes);
  compare("gpu/pinned/to/" + amount + title,
          {to("registered by weft", registered.data()), to("cuMemHostAlloc", allocated)}, how, bytes);
  const auto* const first = static_cast<const float*>(allocated);
  check_pattern({first, first + n}, "pinned memory of the driver");
  check_pattern({registered.data(), registered.data() + n}, "pinned memory of weft");
  plain_gpu::check(plain->cuMemFreeHost(allocated));
}

/// The process whose memory is copied: until nobody reads what it says.
int lend(std::size_t size) {
  weft::machine_options chosen;
  chosen.backend = std::string{to_string(maker().kind)};
  const weft::machine m{chosen};
  const std::size_t n = size / sizeof(float);
  const weft::shareable_buffer<float> lent{m[0], n};
  std::vector<float> pattern(n);
  for (std::size_t i = 0; i < n; ++i) pattern[i] = static_cast<float>(i % 1000);
  weft::copy(lent, pattern);
  std::printf("%s\n", lent.handle().text().c_str());
  std::fflush(stdout);
  pollfd reader{STDOUT_FILENO, 0, 0};
  while (::poll(&reader, 1, -1) < 0 && errno == EINTR) {
  }
  return 0;
}

/// From memory of another process, opened by its handle, and the plain call with the same addresses.
void copies_between_processes(const weft::machine& m, const plain_gpu& plain, const options& how, std::size_t size) {
  std::array<char, 4096> self{};  // by name: in the shell that starts it /proc/self is the shell
  if (::readlink("/proc/self/exe", self.data(), self.size() - 1) <= 0) return;
  std::FILE* const other =
      ::popen(("exec '" + std::string{self.data()} + "' --lend " + std::to_string(size)).c_str(), "r");
  std::array<char, 256> line{};
  if (other == nullptr || std::fgets(line.data(), static_cast<int>(line.size()), other) == nullptr) {
    std::fprintf(stderr, "gpu: no other process could be started\n");
    std::exit(1);
  }
  std::string handle{line.data()};
  handle.pop_back();
  {
    const std::size_t n = size / sizeof(float);
    const weft::opened_memory<float> theirs{m[0], weft::memory_handle::from_text(handle)};
    const weft::buffer<float> mine{m[0], n};
    compare("gpu/copy/between_processes/" + std::to_string(size >> 20) + "MiB",
            {by_weft([&] { weft::copy(mine, theirs.span()); }),
             plain.waited_for("cuMemcpyDtoDAsync",
                              [&] {
                                return plain->cuMemcpyDtoDAsync(address_of(mine.data()), address_of(theirs.data()),
                                                                size, plain.stream());
                              })},
            how, static_cast<double>(size));
    std::vector<float> got(n);
    weft::copy(got, mine);
    check_pattern(got, "copies between processes");
  }
  ::pclose(other);
}

/// From one part of the GPU to another without peer access: through the host, in pieces.
void staged(const weft::machine& m, const plain_gpu& plain, const options& how, std::size_t size) {
  if (m.device_count() < 2) return;
  const std::size_t n = size / sizeof(float);
  const weft::buffer<float> a{m[0], n}, b{m[1], n};
  const weft::pinned_buffer<float> host{m[0], n};
  for (std::size_t i = 0; i < n; ++i) host.data()[i] = static_cast<float>(i % 1000);
  weft::copy(a, host);
  compare("gpu/copy/between_devices/" + std::to_string(size >> 20) + "MiB: without peer access, against one link",
          {by_weft([&] { weft::copy(b, a); }),
           plain.waited_for(
               "cuMemcpyDtoHAsync",
               [&] { return plain->cuMemcpyDtoHAsync(host.data(), address_of(a.data()), size, plain.stream()); })},
          how, static_cast<double>(size));
  std::vector<float> got(n);
  weft::copy(got, b);
  check_pattern(got, "a staged copy");
}

void launches(const weft::machine& m, const plain_gpu& plain, const options& how) {
  constexpr std::int64_t items = 64;
  const weft::buffer<float> memory{m[0], items};
  const weft::stream order{m[0]};
  const weft::kernel_code& code = *weft::detail::code_of<gpu_bench_nothing>();
  weft::gpu::gpu_place gpu;
  plain_gpu::check(plain->cuDeviceGetAttribute(&gpu.major, weft::gpu::compute_capability_major, 0));
  plain_gpu::check(plain->cuDeviceGetAttribute(&gpu.minor, weft::gpu::compute_capability_minor, 0));
  const auto compiler = maker().compiler("", plain->version);
  if (!compiler) leave_out(compiler.error().what);
  const auto image = (*compiler)->compile(code, maker().architecture(*plain.operator->(), gpu));
  if (!image) leave_out(image.error().what);
  weft::gpu::CUmodule module = nullptr;
  weft::gpu::CUfunction function = nullptr;
  plain_gpu::check(plain->cuModuleLoadDataEx(&module, image->bytes.data(), 0, nullptr, nullptr));
  plain_gpu::check(plain->cuModuleGetFunction(&function, module, weft::kernel_entry(code).c_str()));
  weft::gpu::CUevent event = nullptr;
  weft::gpu::CUevent timed = nullptr;
  plain_gpu::check(plain->cuEventCreate(&event, weft::gpu::event_disable_timing));
  plain_gpu::check(plain->cuEventCreate(&timed, weft::gpu::event_blocking_sync));  // as weft's own
  weft::gpu::CUdeviceptr first = address_of(memory.data());
  std::int64_t begin = 0;
  std::int64_t end = items;
  std::array<void*, 3> parameters{&first, &begin, &end};
  const int pairs = how.samples * 200;
  const auto by_hand = [&](weft::gpu::CUevent with, bool enters = false) {
    const std::string name = std::string{"cuLaunchKernel"} + (with == nullptr ? "" : " + cuEventRecord") +
                             (with == timed ? " with a time" : "") + (enters ? " + calls for the context" : "");
    return contender{name, [&, with, enters] {
                       return seconds_of(1, [&] {
                         weft::gpu::CUcontext context = nullptr;
                         if (enters) {
                           plain_gpu::check(plain->cuCtxGetCurrent(&context));
                           plain_gpu::check(plain->cuCtxPushCurrent(context));
                         }
                         plain_gpu::check(plain->cuLaunchKernel(function, 1, 1, 1, 256, 1, 1, 0, plain.stream(),
                                                                parameters.data(), nullptr));
                         if (with != nullptr) plain_gpu::check(plain->cuEventRecord(with, plain.stream()));
                         if (enters) plain_gpu::check(plain->cuCtxPopCurrent(&context));
                         plain.finish();
                       });
                     }};
  };
  const contender ours{"launch in a stream", [&] {
                         return seconds_of(1, [&] { launch<gpu_bench_nothing>(order, range(items), memory).wait(); });
                       }};
  compare_difference("gpu/launch: one buffer, submitted and waited for", ours, by_hand(nullptr), pairs, how);
  compare_difference("gpu/launch/event: the same, the plain calls with an event", ours, by_hand(event), pairs, how);
  const contender inside{"launch in a stream, in a device_scope", [&] {
                           const weft::device_scope here{m[0]};
                           return ours.sample();
                         }};
  std::thread{[&] {
    compare_difference("gpu/launch/scope: what a device_scope saves a thread without a context", ours, inside, pairs,
                       how);
  }}.join();
  // whether untimed events, and fewer calls for the context, would be worth their rules
  compare_difference("gpu/launch/time: what the time of an event costs", by_hand(timed), by_hand(event), pairs, how);
  compare_difference("gpu/launch/context: what looking, entering and leaving cost", by_hand(event, true),
                     by_hand(event), pairs, how);
  plain->cuEventDestroy(event);
  plain->cuEventDestroy(timed);
  plain->cuModuleUnload(module);
}

/// One message to a kernel that stays, and its answer.
void round_trips(const weft::machine& m, weft::transfer_mode mode, const options& how) {
  try {
    weft::queue_options small;
    small.capacity = 64;
    small.mode = mode;
    weft::message_queue<std::uint64_t> there{m, weft::device_id{m.device_count() - 1}, weft::device_id{0}, small};
    weft::message_queue<std::uint64_t> back{m, weft::device_id{0}, weft::device_id{m.device_count() - 1}, small};
    auto tx = there.open_sender();
    auto rx = back.open_receiver();
    auto kernels_rx = there.open_receiver();
    auto kernels_tx = back.open_sender();
    const weft::kernel_end in{kernels_rx}, out{kernels_tx};
    const weft::buffer<std::uint64_t> done{m[0], 1};
    const weft::stream order{m[0]};
    const auto count = static_cast<std::uint64_t>(how.samples) * 500;
    auto running = launch<gpu_bench_answers>(order, range(1), in, out, count, polls, done);
    std::vector<double> took;
    for (std::uint64_t n = 0; n < count; ++n) {
      std::uint64_t got = 0;
      const double began = now();
      tx.send(n);
      if (rx.receive(got) != weft::queue_status::ok) std::exit(1);
      took.push_back(now() - began);
      if (got != n + 1) {
        std::fprintf(stderr, "gpu: a wrong answer to message %llu\n", static_cast<unsigned long long>(n));
        std::exit(1);
      }
    }
    running.wait();
    const spread s = spread_of(std::move(took));
    const std::string delivery{to_string(in.delivery())};
    std::printf("gpu/queue/round_trip/%s: p5 %.2f us, median %.2f us, p95 %.2f us\n", delivery.c_str(), s.p5 * 1e6,
                s.median * 1e6, s.p95 * 1e6);
  } catch (const weft::error_exception& e) {
    std::printf("gpu/queue/round_trip/%s: not offered: %s\n", std::string{to_string(mode)}.c_str(), e.what());
  }
}

/// Messages one way, from a thread to a kernel that stays, sent one by one or `batch` at a time.
template <class Kernel, std::size_t words>
void to_kernel(const weft::machine& m, weft::transfer_mode mode, std::size_t batch, std::uint64_t count,
               const options& how, const char* title) {
  using message = std::array<std::uint64_t, words>;
  weft::queue_options ring;
  ring.capacity = 1024;
  ring.mode = mode;
  const std::string bytes = std::to_string(sizeof(message)) + "B";
  try {
    weft::message_queue<message> there{m, weft::device_id{0}, weft::device_id{0}, ring};
    auto tx = there.open_sender();
    auto rx = there.open_receiver();
    const weft::kernel_end in{rx};
    const std::string name = std::string{"gpu/queue/"} + title + "/" + std::string{to_string(in.delivery())} + "/" +
                             bytes + "/by_" + std::to_string(batch);
    const weft::buffer<std::uint64_t> done{m[0], 2};
    const weft::stream order{m[0]};
    std::vector<message> sent(batch);
    std::vector<double> took;
    for (int round = 0; round < std::min(how.samples, 5); ++round) {
      const double began = now();
      auto running = launch<Kernel>(order, range(1), in, count, polls, done);
      for (std::uint64_t n = 0; n < count; n += batch) {
        for (std::size_t i = 0; i < batch; ++i) sent[i].fill(n + i);
        if (tx.send_batch(std::span<const message>{sent}).count != batch) std::exit(1);
      }
      running.wait();
      took.push_back((now() - began) / static_cast<double>(count));
      std::vector<std::uint64_t> got(2);
      weft::copy(got, done);
      if (got[0] == count && got[1] == 0) continue;
      std::fprintf(stderr, "%s: %llu messages, and %llu words of another one\n", name.c_str(),
                   static_cast<unsigned long long>(got[0]), static_cast<unsigned long long>(got[1]));
      std::exit(1);
    }
    const spread s = spread_of(std::move(took));
    std::printf("%s: median %.3f us a message, %.3f GB/s\n", name.c_str(), s.median * 1e6,
                static_cast<double>(sizeof(message)) / s.median / 1e9);
  } catch (const weft::error_exception& e) {
    std::printf("gpu/queue/%s/%s/%s: not offered: %s\n", title, std::string{to_string(mode)}.c_str(), bytes.c_str(),
                e.what());
  }
}

void messages(const weft::machine& m, const options& how, bool is_virtual) {
  const std::uint64_t many = is_virtual ? 400 : 20'000;
  for (const weft::transfer_mode mode : {weft::transfer_mode::host_staged, weft::transfer_mode::direct}) {
    for (const std::size_t batch : {std::size_t{1}, std::size_t{100}}) {
      to_kernel<gpu_bench_takes_1, 1>(m, mode, batch, many, how, "to_kernel");
      to_kernel<gpu_bench_takes_8, 8>(m, mode, batch, many, how, "to_kernel");
      to_kernel<gpu_bench_takes_64, 64>(m, mode, batch, many, how, "to_kernel");
      to_kernel<gpu_bench_takes_512, 512>(m, mode, batch, many / 4, how, "to_kernel");
    }
    to_kernel<gpu_bench_checks_512, 512>(m, mode, 1, many, how, "all_words");
  }
}

/// Of cub_sum.cu.
using cub_sum = int (*)(const float*, float*, std::size_t, void*, std::size_t*, void*);

/// The kernel of a sum and CUB's, which also adds up what its blocks found.
void against_cub(const weft::machine& m, const plain_gpu& plain, const options& how, const contender& kernel,
                 const weft::buffer<float>& ones, int rounds) {
  const std::string library = variable("WEFT_BENCH_CUB");
  if (library.empty()) return;
  void* const opened = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto sum = opened != nullptr ? reinterpret_cast<cub_sum>(::dlsym(opened, "weft_cub_sum")) : nullptr;
  std::size_t workspace_size = 0;
  const weft::buffer<float> result{m[0], 1};
  int status = -1;
  if (sum != nullptr) status = sum(ones.data(), result.data(), ones.size(), nullptr, &workspace_size, plain.stream());
  if (status != 0) {
    std::printf("gpu/reduce/cub: left out: %s does not work, status %d\n", library.c_str(), status);
    return;
  }
  const weft::buffer<std::byte> workspace{m[0], std::max<std::size_t>(workspace_size, 1)};
  compare(
      "gpu/reduce/cub/" + std::to_string(ones.size() * sizeof(float) >> 20) + "MiB: the kernel of a sum, against CUB",
      {kernel,
       {"cub::DeviceReduce::Sum",
        [&] {
          return seconds_of(1,
                            [&] {
                              for (int round = 0; round < rounds; ++round)
                                plain_gpu::check(sum(ones.data(), result.data(), ones.size(), workspace.data(),
                                                     &workspace_size, plain.stream()));
                              plain.finish();
                            }) /
                 rounds;
        }}},
      how, static_cast<double>(ones.size() * sizeof(float)));
  std::vector<float> got(1);
  weft::copy(got, result);
  const auto count = static_cast<float>(ones.size());
  if (std::abs(got[0] - count) <= count * 1e-6F) return;
  std::fprintf(stderr, "gpu: CUB: a wrong sum\n");
  std::exit(1);
}

/// The kernel alone, many behind each other so that submitting them is hidden, and then a whole call, which also brings
/// a number for each 1,024 elements to the host and adds those up there. A copy reads and writes: the chip moves twice
/// the bytes that a sum reads.
void reductions(const weft::machine& m, const plain_gpu& plain, const options& how, std::size_t size) {
  const std::size_t n = size / sizeof(float);
  const auto blocks = static_cast<std::int64_t>(n / weft::detail::reduction_block);
  const weft::buffer<float> a{m[0], n}, b{m[0], n};
  const weft::buffer<double> results{m[0], static_cast<std::size_t>(blocks)};
  weft::fill(a, 1.0F);
  const weft::stream order{m[0]};
  const auto& code = weft::detail::reduction_kernel(weft::element_type::float32);
  weft::kernels(m).add(code);
  const int rounds = size >> 20 >= 128 ? 16 : 1;
  const contender half_copies{"half of cuMemcpyDtoDAsync", [&] {
                                return seconds_of(
                                           1,
                                           [&] {
                                             for (int round = 0; round < rounds; ++round)
                                               plain_gpu::check(plain->cuMemcpyDtoDAsync(
                                                   address_of(b.data()), address_of(a.data()), size, plain.stream()));
                                             plain.finish();
                                           }) /
                                       (2 * rounds);
                              }};
  const contender kernel{"kernel", [&] {
                           return seconds_of(1,
                                             [&] {
                                               weft::event last;
                                               for (int round = 0; round < rounds; ++round)
                                                 last = launch(order, code->name, range(blocks), a, results,
                                                               static_cast<std::int64_t>(n), std::int32_t{0});
                                               last.wait();
                                             }) /
                                  rounds;
                         }};
  const std::string amount = std::to_string(size >> 20) + "MiB";
  compare("gpu/reduce/kernel/" + amount + ": the kernel of a sum, against half the time of a copy of the same bytes",
          {kernel, half_copies}, how, static_cast<double>(size));
  std::vector<double> got(results.size());
  weft::copy(got, results);
  const auto is_wrong = [](double sum) { return sum != static_cast<double>(weft::detail::reduction_block); };
  if (std::ranges::any_of(got, is_wrong)) {
    std::fprintf(stderr, "gpu: reductions: wrong sums\n");
    std::exit(1);
  }
  against_cub(m, plain, how, kernel, a, rounds);
  compare("gpu/reduce/" + amount + ": a whole sum, against the same",
          {{"weft::sum",
            [&] {
              return seconds_of(1, [&] {
                if (weft::sum(m, a) != static_cast<double>(n)) std::exit(1);
              });
            }},
           half_copies},
          how, static_cast<double>(size));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view{argv[1]} == "--lend") return lend(std::strtoull(argv[2], nullptr, 10));
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  std::string only;
  if (argc >= 3 && std::string_view{argv[1]} == "--part") {
    only = argv[2];
    argv[2] = argv[0];
    argc -= 2;
    argv += 2;
  }
  const options how = parse(argc, argv);
  const auto cu = maker().load(driver_library());
  if (!cu) leave_out(cu.error().what);
  weft::machine_options chosen;
  chosen.backend = std::string{to_string(maker().kind)};
  const weft::machine m{chosen};
  const bool is_virtual = m[0].name().starts_with("Virtual ");
  print_machine(how, m[0].name() + ", " + (*cu)->library +
                         (is_virtual ? "; a virtual driver: CPU memory, not a GPU figure" : ""));
  const plain_gpu plain{*cu};
  // small memory: a GPU that others use; the virtual driver only shows that the data is right
  const std::size_t most = std::size_t{is_virtual ? 16U : 256U} << 20;
  const std::size_t size = std::min<std::size_t>(most, m[0].free_memory().value() / 8) & ~std::size_t{4095};
  const std::size_t small = is_virtual ? size / 16 : size;  // each thread of a kernel is a fiber there
  const std::vector<std::pair<std::string_view, std::function<void()>>> parts{
      {"copies", [&] { copies(m, plain, how, size); }},
      {"launches", [&] { launches(m, plain, how); }},
      {"queues",
       [&] {
         round_trips(m, weft::transfer_mode::host_staged, how);
         round_trips(m, weft::transfer_mode::direct, how);
         ::setenv("WEFT_CUDA_GDRCOPY", "none", 1);  // NOLINT(concurrency-mt-unsafe): for a machine without windows
         round_trips(weft::machine{chosen}, weft::transfer_mode::direct, how);
       }},
      {"messages", [&] { messages(m, how, is_virtual); }},
      {"reductions", [&] { reductions(m, plain, how, small); }},
      {"processes", [&] { copies_between_processes(m, plain, how, size); }},
      {"pinned", [&] { pinned_kinds(m, plain, how, size); }},
      {"kernels", [&] { copies_by_kernel(m, plain, how, small); }},
      {"staged", [&] { staged(m, plain, how, size); }}};
  bool is_known = false;
  for (const auto& [name, measure] : parts) {
    if (!only.empty() && only != name) continue;
    is_known = true;
    measure();
  }
  if (is_known) return 0;
  std::fprintf(stderr, "gpu: there is no part '%s'\n", only.c_str());
  return 2;
}
