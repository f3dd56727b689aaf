// SPDX-License-Identifier: Apache-2.0
// A ring of GPUs in one process: the kernel of each one writes into the memory of the next, through peer access.
// ring_ipc.cpp and ring_blocks.cpp do the same with a process for each GPU.
#include "ring.hpp"

int show(int size) {
  const weft::machine m = ring::machine_of(size);
  for (int r = 0; r < size; ++r) std::cout << ring::attributes_of(m, r);

  std::vector<weft::buffer<std::uint32_t>> inboxes;
  for (const weft::device& gpu : m.devices()) inboxes.emplace_back(gpu, ring::count);

  // All first, then all: on GPUs the writes around the ring run at the same time.
  std::vector<weft::peer_access> access;
  std::vector<weft::peer_mapping<std::uint32_t>> views;
  std::vector<weft::event> written;
  for (int r = 0; r < size; ++r) {
    const auto& next = inboxes[static_cast<std::size_t>((r + 1) % size)];
    access.emplace_back(m, weft::device_id{r}, next.on());
    views.emplace_back(m, next.span(), weft::device_id{r});  // the next GPU's inbox, as GPU r reaches it
    written.push_back(weft::launch<ring::ring_write>(weft::stream{m[r]}, weft::range(ring::count), views.back().span(),
                                                     static_cast<std::uint32_t>(r)));
  }
  for (const weft::event& one : written) one.wait();

  bool right = true;
  for (int r = 0; r < size; ++r) {
    std::vector<std::uint32_t> inbox(ring::count);
    weft::copy(inbox, inboxes[static_cast<std::size_t>(r)]);
    const std::string said = ring::verdict(m, inbox, (r + size - 1) % size, r);
    std::cout << said;
    right = right && said.ends_with(" 0 wrong, 0 copies\n");
  }
  return right ? 0 : 1;
}

int main(int argc, char** argv) {
  const int size = ring::size_from(argc, argv);
  return examples::run([&] { return show(size); });
}
