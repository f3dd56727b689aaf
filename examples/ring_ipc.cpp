// SPDX-License-Identifier: Apache-2.0
// A ring of GPUs, each with a process of its own: the kernel of each one writes into memory that the next process has
// exported, and an event of the writer's process says when it is there.
#include "ring.hpp"
#include "weft/memory/ipc_event.hpp"
#include "weft/memory/shared_memory.hpp"

#include <algorithm>

namespace {

/// What each process tells the others: 64 bytes for its memory, and 64 for its event.
struct names {
  weft::shared_bytes inbox, wrote;
};

std::string run(weft::process_group& group) {
  const int self = group.self().value(), size = group.size();
  const int next = (self + 1) % size, previous = (self + size - 1) % size;
  const weft::machine m = ring::machine_of(size);
  const weft::device gpu = m[self];  // each process uses one device

  const weft::shareable_buffer<std::uint32_t> inbox{gpu, ring::count};
  const weft::ipc_event wrote{m};
  const names mine{inbox.handle().bytes(), wrote.handle().bytes()};
  const auto told = weft::value_or_raise(group.all_gather(std::as_bytes(std::span{&mine, 1}), ring::timeout));
  const auto names_of = [&](int rank) {  // what came from outside is checked here and in from_bytes
    const auto& from = told[static_cast<std::size_t>(rank)];
    if (from.size() != sizeof(names)) throw std::runtime_error{"rank " + std::to_string(rank) + " sent no names"};
    names got;
    std::ranges::copy(from, std::as_writable_bytes(std::span{&got, 1}).begin());
    return got;
  };
  const weft::opened_memory<std::uint32_t> there{gpu, weft::memory_handle::from_bytes(names_of(next).inbox)};
  const weft::ipc_event arrived{m, weft::event_handle::from_bytes(names_of(previous).wrote)};

  const weft::stream order{gpu};
  weft::launch<ring::ring_write>(order, weft::range(ring::count), there.span(), static_cast<std::uint32_t>(self));
  wrote.record(order);
  arrived.wait(order, 1, ring::timeout);  // the stream goes on after the first record of the previous process

  std::vector<std::uint32_t> host(ring::count);
  weft::copy(order, host, inbox).wait();
  const std::string said = ring::attributes_of(m, self) + ring::verdict(m, host, previous, self);
  weft::value_or_raise(group.barrier(ring::timeout));  // nobody frees what another still writes
  return said;
}

}  // namespace

int main(int argc, char** argv) { return ring::in_processes(ring::size_from(argc, argv), run); }
