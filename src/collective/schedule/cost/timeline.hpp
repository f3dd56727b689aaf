// SPDX-License-Identifier: Apache-2.0
// When operations of streams end that compete for wires and engines, by the rules of the virtual clock: what has been
// ready for longest starts first, then what was added first, and holds all it needs until it ends. Nothing runs.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace weft::detail {

/// Thread: one at a time.
class timeline {
 public:
  /// `resources` are held by one operation at a time.
  explicit timeline(std::size_t resources);

  [[nodiscard]] int add_stream();
  /// Adds an operation to the end of a stream; its number. `needs` lists resources and lives as long as this.
  int add(int stream, std::chrono::nanoseconds duration, std::span<const int> needs = {});
  /// Adds one that takes no time, and comes after an operation of another stream.
  int add_wait(int stream, int before);

  /// Lets all that was added run; when the last of it ends. Once.
  /// Cost: by the number of operations, each as many times as it waits for another resource.
  [[nodiscard]] std::chrono::nanoseconds run();

 private:
  struct operation {
    std::chrono::nanoseconds duration{0};
    std::span<const int> needs;
    int next = -1;                            // of its stream
    int first_waiter = -1, next_waiter = -1;  // what comes after it, of other streams
    int missing = 0;                          // operations that must end first: of its stream, and the one waited for
  };
  /// An operation at an instant: ready at it, or ending at it. The first by time, then by number, comes first.
  using entry = std::pair<std::chrono::nanoseconds, int>;
  using queue = std::vector<entry>;  // a heap, the first on top

  void ready(int op);
  void end_of(int op);
  void start_what_can();
  /// Starts it, or leaves it with a resource that it lacks.
  void try_start(const entry& one);

  std::vector<operation> operations_;
  std::vector<int> last_of_;  // by stream
  std::chrono::nanoseconds now_{0};
  queue fresh_;                 // ready since now
  queue running_;               // by its end
  std::vector<char> busy_;      // by resource
  std::vector<queue> waiting_;  // by resource
  std::span<const int> freed_;  // by what ended last
};

}  // namespace weft::detail
