// SPDX-License-Identifier: Apache-2.0
// A ring of GPUs, each with a process of its own: what is shared are blocks of memory, by descriptors that go over a
// socket. Each process maps a block where it likes and says which of its devices may do what there.
#include "ring.hpp"
#include "weft/memory/mapping.hpp"

#include <array>

namespace {

std::string run(weft::process_group& group) {
  const int self = group.self().value(), size = group.size();
  const int next = (self + 1) % size, previous = (self + size - 1) % size;
  const weft::machine m = ring::machine_of(size);
  const weft::device gpu = m[self];  // each process uses one device

  const weft::physical_block block{gpu, weft::bytes{ring::count * sizeof(std::uint32_t)},
                                   weft::sharing::with_processes};
  weft::mapping inbox{block};
  inbox.grant(gpu, weft::access_right::read);  // this process only looks into it

  // The previous GPU writes into this block, so its process gets the descriptor; it may close once it is sent.
  {
    const weft::descriptor offered = block.share();
    const std::array files{offered.get()};
    weft::value_or_raise(group.send(weft::rank{previous}, 1, {}, files, ring::timeout));
  }
  const weft::peer_message came = weft::value_or_raise(group.receive(weft::rank{next}, 1, ring::timeout));
  weft::mapping there{weft::physical_block::open(m[next], came.descriptors.at(0), block.size())};
  there.grant(gpu, weft::access_right::read_write);  // rights are each process's own: none came with it

  weft::launch<ring::ring_write>(weft::stream{gpu}, weft::range(ring::count),
                                 there.span<std::uint32_t>(gpu).first(ring::count), static_cast<std::uint32_t>(self))
      .wait();
  weft::value_or_raise(group.barrier(ring::timeout));  // all have written

  std::vector<std::uint32_t> host(ring::count);
  weft::copy(host, inbox.span<const std::uint32_t>().first(ring::count));
  return ring::attributes_of(m, self) + ring::verdict(m, host, previous, self);
}

}  // namespace

int main(int argc, char** argv) { return ring::in_processes(ring::size_from(argc, argv), run); }
