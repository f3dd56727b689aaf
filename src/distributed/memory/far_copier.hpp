// SPDX-License-Identifier: Apache-2.0
// Carries copies between the memory of two ranks.
#pragma once

#include "distributed/engine/messenger.hpp"
#include "weft/distributed/far_memory.hpp"

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace weft::detail {

/// Shape: who copies sends a request; then the pieces go one way, and an answer comes back behind them. The owner of
/// the memory serves each rank by itself, one request after the other, with two pieces in its own memory. Thread: any
/// for users; the owner's side is a thread of its own, from the first offer on.
class far_copier {
 public:
  static constexpr std::size_t piece = std::size_t{1} << 20;

  far_copier(std::shared_ptr<messenger> by, int self, int ranks);
  ~far_copier();
  far_copier(const far_copier&) = delete;
  far_copier& operator=(const far_copier&) = delete;

  /// Errors: throws resource_exhausted.
  [[nodiscard]] far_place offer(const memory_ref& memory, bool may_write);
  /// Waits for copies that are under way.
  void withdraw(std::uint64_t memory) noexcept;

  /// Errors: as copy().
  [[nodiscard]] result<void> write(const far_place& to, const memory_ref& from, const far_copy_options& options);
  [[nodiscard]] result<void> read(const memory_ref& to, const far_place& from, const far_copy_options& options);

 private:
  struct request;
  struct answer;
  struct host;
  struct guest;
  struct offered {
    memory_ref memory;
    bool may_write = false;
    bool is_cut = false;  // who is served has taken too long
    int guests = 0;       // that it is served to
  };

  // who copies
  [[nodiscard]] result<void> carry_out(bool writes, const far_place& there, const memory_ref& here,
                                       const far_copy_options& options);
  host& host_of(int peer);

  // the owner
  void run() noexcept;
  void await_request();
  [[nodiscard]] bool take_request();
  bool serve(guest& g);
  bool receive_pieces(guest& g);
  bool send_pieces(guest& g);
  void finish(guest& g);
  void let_go(guest& g) noexcept;
  bool drop_lost();
  [[nodiscard]] bool is_cut(const guest& g);

  std::shared_ptr<messenger> by_;
  int self_, ranks_;
  std::mutex hosts_mutex_;
  std::condition_variable freed_;
  std::map<int, std::unique_ptr<host>> hosts_;  // by rank

  std::mutex mutex_;  // of the offers
  std::condition_variable changed_;
  std::map<std::uint64_t, offered> offers_;
  std::uint64_t last_number_ = 0;
  bool is_over_ = false;
  std::thread thread_;

  // of the thread
  std::unique_ptr<request> asked_;  // what comes next
  transfer asking_;
  std::atomic<bool> news_{false};
  std::map<int, std::unique_ptr<guest>> guests_;  // by rank
};

}  // namespace weft::detail
