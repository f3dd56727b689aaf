// SPDX-License-Identifier: Apache-2.0
#include "conformance/case_tools.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/fill.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <fcntl.h>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace weft {
namespace conformance {
namespace {

WEFT_KERNEL(conform_stray, (WEFT_OUT(uint32_t) values, int64_t away), { values[i + away] = 1U; });

void require_work(const device& on) {
  const buffer<std::uint32_t> values{on, 100};
  fill(values, 7U);
  std::vector<std::uint32_t> got(100);
  copy(got, values);
  require_all<std::uint32_t>(got, [](std::size_t) { return 7U; }, to_string(on.id()));
}

/// Either works, or tells why not and is lost by it.
void require_work_or_loss(const device& on) {
  try {
    require_work(on);
  } catch (const error_exception& e) {
    require(on.is_lost(), to_string(on.id()) + " failed and is not lost: " + to_string(e.cause()));
  }
}

verdict a_fault_loses_its_device(const machine& m) {
  if (m.device_count() == 0) not_here("the machine has no device");
  const device gpu = m[0];
  if (gpu.kind() != backend_kind::cuda && gpu.kind() != backend_kind::hip)
    not_here("kernels of this backend may run in the process itself, and take it with them");
  const stream order{gpu};
  const buffer<std::uint32_t> values{gpu, 100};
  fill(values, 3U);
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(values.data()));
  const event stray = launch<conform_stray>(order, range(1), values, (64 - address) / 4);
  expect_error({errc::illegal_access, errc::kernel_failed, errc::device_lost}, "a kernel that stores to address 64",
               [&] { static_cast<void>(stray.wait_for(long_enough)); });
  require(gpu.is_lost(), "the device is not lost");
  expect_error({errc::device_lost}, "work after the fault", [&] { fill(values, 4U); });
  for (const device& other : m.devices()) {
    if (other.id() != gpu.id()) require_work_or_loss(other);
  }
  try {
    gpu.reset();
  } catch (const error_exception& e) {
    require(e.code() == errc::device_lost && e.cause().what.find("restart the process") != std::string::npos,
            "the reset says neither that it is done nor that the process has to start anew: " + to_string(e.cause()));
    require(gpu.is_lost(), "the device counts as well, though its reset failed");
    return holds();
  }
  require_work(gpu);
  return holds();
}

verdict judged_here(const std::function<machine()>& open) {
  try {
    return a_fault_loses_its_device(open());
  } catch (const absent& a) {
    return {verdict_kind::not_offered, a.why};
  } catch (const shortfall& s) {
    return {verdict_kind::falls_short, s.why};
  } catch (const std::exception& e) {
    return {verdict_kind::falls_short, std::string{"it failed: "} + e.what()};
  }
}

verdict a_fault_in_a_process_of_its_own(context& c) {
  if (!c.fault()) not_here("nothing was forked for it before the first machine was opened");
  return *c.fault();
}

}  // namespace

void add_faults(case_list& list) {
  list.push_back({"a kernel's fault loses its device, and a reset brings it back or says to restart the process",
                  "faults", a_fault_in_a_process_of_its_own});
}

}  // namespace conformance

verdict live_through_fault(const std::function<machine()>& open) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return {verdict_kind::not_offered, "there is no pipe"};
  const pid_t suite = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) {
    for (const int end : ends) ::close(end);
    return {verdict_kind::not_offered, "no process can be forked"};
  }
  if (child == 0) {
    // it goes with the suite, and where the driver hangs, alone
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != suite) ::_exit(1);
    ::alarm(static_cast<unsigned>(std::chrono::seconds{samples::only_a_hang}.count()));
    const verdict v = conformance::judged_here(open);
    const std::string text = std::to_string(static_cast<int>(v.kind)) + v.why;
    ::_exit(::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> part{};
  for (ssize_t size = 1; size != 0;) {
    size = ::read(ends[0], part.data(), part.size());
    if (size < 0 && errno != EINTR) break;
    if (size > 0) text.append(part.data(), static_cast<std::size_t>(size));
  }
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
    return {verdict_kind::falls_short, "a process whose kernel faulted did not go on"};
  if (WIFSIGNALED(status)) {
    return {verdict_kind::not_offered,
            "the driver ends the process at a fault, by signal " + std::to_string(WTERMSIG(status))};
  }
  if (text.empty()) return {verdict_kind::falls_short, "the process whose kernel faulted said nothing"};
  return {static_cast<verdict_kind>(text.front() - '0'), text.substr(1)};
}

}  // namespace weft
