// SPDX-License-Identifier: Apache-2.0
// Queues between several devices: a pair, both ways, a ring, everybody with everybody.
#pragma once

#include "weft/channel/message_queue.hpp"
#include "weft/core/ids.hpp"
#include "weft/runtime/machine.hpp"

#include <cstddef>
#include <source_location>
#include <span>
#include <utility>
#include <vector>

namespace weft {

/// One queue of a network.
struct queue_edge {
  device_id from;
  device_id to;

  friend bool operator==(const queue_edge&, const queue_edge&) = default;
};

/// a -> b and b -> a. Errors: invalid_argument when they are one device.
[[nodiscard]] std::vector<queue_edge> both_ways(device_id a, device_id b,
                                                std::source_location where = std::source_location::current());
/// 0 -> 1, 1 -> 2, …, last -> 0. Errors: invalid_argument for fewer than two devices, or one that stands twice.
[[nodiscard]] std::vector<queue_edge> ring_edges(std::span<const device_id> devices,
                                                 std::source_location where = std::source_location::current());
/// Every ordered pair: N (N - 1) of them. Errors: as ring_edges.
[[nodiscard]] std::vector<queue_edge> mesh_edges(std::span<const device_id> devices,
                                                 std::source_location where = std::source_location::current());

namespace detail {
/// Errors: invalid_argument when there is none, or one stands twice.
void check_edges(std::span<const queue_edge> edges, std::source_location where);
/// Errors: not_found, with what there is.
[[nodiscard]] std::size_t index_of_edge(std::span<const queue_edge> edges, device_id from, device_id to,
                                        std::source_location where);
[[noreturn]] void raise_no_such_sender(const queue_edge& edge, std::size_t asked, std::size_t producers,
                                       std::source_location where);
}  // namespace detail

/// Several queues of one kind, with all their ends open. The ends stay where they are for as long as the network lives,
/// also when it is moved.
///
/// Thread: looking up, any; an end belongs to one thread at a time.
template <message T>
class queue_network {
 public:
  /// Errors: invalid_argument (no edge, an edge that stands twice), and those of message_queue's constructor.
  queue_network(const machine& m, std::vector<queue_edge> edges, const queue_options& options = {},
                std::source_location where = std::source_location::current())
      : edges_(std::move(edges)) {
    detail::check_edges(edges_, where);
    lines_.reserve(edges_.size());
    for (const queue_edge& edge : edges_) {
      lines_.push_back({message_queue<T>{m, edge.from, edge.to, options, where}, {}, {}});
      line& made = lines_.back();
      made.senders.reserve(static_cast<std::size_t>(options.producers));
      for (int i = 0; i < options.producers; ++i) made.senders.push_back(made.queue.open_sender(where));
      made.receiver = made.queue.open_receiver(where);
    }
  }

  /// In the order in which they were made.
  [[nodiscard]] const std::vector<queue_edge>& edges() const noexcept { return edges_; }
  [[nodiscard]] std::size_t size() const noexcept { return edges_.size(); }

  /// Errors: not_found when there is no such queue. Cost: linear in the queues; keep the reference.
  [[nodiscard]] const message_queue<T>& queue(device_id from, device_id to,
                                              std::source_location where = std::source_location::current()) const {
    return lines_[detail::index_of_edge(edges_, from, to, where)].queue;
  }
  /// `producer` counts from 0 to queue_options::producers - 1. Errors: not_found.
  [[nodiscard]] weft::sender<T>& sender(device_id from, device_id to, std::size_t producer = 0,
                                        std::source_location where = std::source_location::current()) {
    const std::size_t at = detail::index_of_edge(edges_, from, to, where);
    std::vector<weft::sender<T>>& senders = lines_[at].senders;
    if (producer >= senders.size()) detail::raise_no_such_sender(edges_[at], producer, senders.size(), where);
    return senders[producer];
  }
  /// Errors: not_found.
  [[nodiscard]] weft::receiver<T>& receiver(device_id from, device_id to,
                                            std::source_location where = std::source_location::current()) {
    return lines_[detail::index_of_edge(edges_, from, to, where)].receiver;
  }

  /// Ends every queue at once, as message_queue::close.
  void close() noexcept {
    for (line& each : lines_) each.queue.close();
  }

 private:
  struct line {
    message_queue<T> queue;
    std::vector<weft::sender<T>> senders;
    weft::receiver<T> receiver;
  };

  std::vector<queue_edge> edges_;
  std::vector<line> lines_;
};

/// One queue with both its ends.
template <message T>
[[nodiscard]] queue_network<T> make_pair(const machine& m, device_id from, device_id to,
                                         const queue_options& options = {},
                                         std::source_location where = std::source_location::current()) {
  return {m, {{from, to}}, options, where};
}

/// A queue each way. Errors: invalid_argument when `a` is `b`.
template <message T>
[[nodiscard]] queue_network<T> make_bidirectional(const machine& m, device_id a, device_id b,
                                                  const queue_options& options = {},
                                                  std::source_location where = std::source_location::current()) {
  return {m, both_ways(a, b, where), options, where};
}

/// N queues, from each device to the next and from the last to the first.
template <message T>
[[nodiscard]] queue_network<T> make_ring(const machine& m, const std::vector<device_id>& devices,
                                         const queue_options& options = {},
                                         std::source_location where = std::source_location::current()) {
  return {m, ring_edges(devices, where), options, where};
}

/// N (N - 1) queues, from each device to every other.
template <message T>
[[nodiscard]] queue_network<T> make_mesh(const machine& m, const std::vector<device_id>& devices,
                                         const queue_options& options = {},
                                         std::source_location where = std::source_location::current()) {
  return {m, mesh_edges(devices, where), options, where};
}

}  // namespace weft
