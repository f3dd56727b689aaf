// SPDX-License-Identifier: Apache-2.0
// What the three rings share: the kernel that writes to the next GPU, the attributes of a pair, and k processes.
#pragma once

#include "play.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/copy.hpp"
#include "weft/memory/peer_access.hpp"
#include "weft/processes/rendezvous.hpp"

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace ring {

constexpr std::int64_t count = 300'007;  // 32-bit words in each GPU's inbox
constexpr std::chrono::seconds timeout{20};

/// Runs on one GPU and writes the memory of the next one: no copy is made, and none is counted.
WEFT_KERNEL(ring_write, (WEFT_OUT(uint32_t) next, uint32_t from),
            { next[i] = (uint32_t)i * 2654435761u + (from + 1u) * 40503u; });

/// How many words of an inbox are not what the GPU `from` writes.
inline std::size_t wrong_words(const std::vector<std::uint32_t>& inbox, int from) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < inbox.size(); ++i) {
    if (inbox[i] != static_cast<std::uint32_t>(i) * 2654435761U + (static_cast<std::uint32_t>(from) + 1U) * 40503U)
      ++wrong;
  }
  return wrong;
}

inline weft::machine machine_of(int size) {
  weft::machine_options options;
  options.devices = size;
  return weft::machine{options};
}

/// How many GPUs: the program's only argument.
inline int size_from(int argc, char** argv) {
  const std::string_view text = argc > 1 ? argv[1] : "4";
  if (argc <= 2 && text.size() == 1 && text[0] >= '2' && text[0] <= '8') return text[0] - '0';
  std::cerr << "usage: " << argv[0] << " [GPUS], 2 to 8\n";
  std::exit(2);
}

/// What is known of each GPU that `from` may write to.
inline std::string attributes_of(const weft::machine& m, int from) {
  std::ostringstream text;
  for (const weft::device& to : m.devices()) {
    const auto pair = weft::capability_between(m, weft::device_id{from}, to);
    if (!pair) continue;  // the device itself
    text << "gpu" << from << " -> " << to_string(to) << ": access " << (pair->supported ? "yes" : "no")
         << ", performance rank " << (pair->performance_rank ? std::to_string(*pair->performance_rank) : "unknown")
         << ", native atomics " << (pair->native_atomics ? "yes" : "no") << ", arrays "
         << (pair->array_access ? "yes" : "no") << "\n";
  }
  return text.str();
}

/// Says what arrived in the inbox of GPU `self`, and how many copies between devices were made on the way.
inline std::string verdict(const weft::machine& m, const std::vector<std::uint32_t>& inbox, int from, int self) {
  const weft::copy_counters made = weft::counters(m);
  const std::size_t wrong = wrong_words(inbox, from);
  std::ostringstream text;
  text << "gpu" << from << " wrote to gpu" << self << ": " << inbox.size() << " words, " << wrong << " wrong, "
       << made.same_device.copies + made.direct.copies + made.staged.copies + made.relayed.copies << " copies\n";
  return text.str();
}

/// Runs `body` in one process for each rank, this one being rank 0, and gives main()'s value. The processes are forked
/// here, before any of them has a machine. Their texts are gathered, and rank 0 prints them in order.
template <class F>
int in_processes(int size, F&& body) {
  std::vector<weft::rendezvous> places = weft::rendezvous::connected(size);
  std::vector<pid_t> children;
  int self = 0;
  for (int r = 1; r < size && self == 0; ++r) {
    const pid_t child = ::fork();
    if (child < 0) throw std::runtime_error{"no process for rank " + std::to_string(r)};
    if (child > 0) {
      children.push_back(child);
    } else {
      children.clear();
      self = r;
    }
  }
  weft::rendezvous mine = std::move(places[static_cast<std::size_t>(self)]);
  places.clear();  // those of the others
  bool right = false, absent = false;
  try {
    weft::process_group group = weft::value_or_raise(std::move(mine).join());
    const std::string said = body(group);
    const auto all = weft::value_or_raise(group.all_gather(std::as_bytes(std::span{said}), timeout));
    for (const auto& text : all) {
      if (self == 0) std::cout.write(reinterpret_cast<const char*>(text.data()), std::ssize(text));
    }
    right = said.find(" 0 wrong, 0 copies\n") != std::string::npos;
  } catch (const weft::error_exception& e) {
    std::cerr << "rank " << self << ": " << e.what() << "\n";
    if (examples::exit_code_of(e.cause()) == examples::exit_absent) absent = true;
  } catch (const std::exception& e) {
    std::cerr << "rank " << self << ": " << e.what() << "\n";
  }
  for (const pid_t child : children) {  // none of them waits longer than `timeout` for anything
    int status = 0;
    right = ::waitpid(child, &status, 0) == child && status == 0 && right;
    absent = absent || (WIFEXITED(status) && WEXITSTATUS(status) == examples::exit_absent);
  }
  if (absent) return examples::exit_absent;  // where one GPU cannot, the others fail for want of it
  return right ? 0 : 1;
}

}  // namespace ring
