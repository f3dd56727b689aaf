// SPDX-License-Identifier: Apache-2.0
// MPI's own collectives. MPI can call none of them back, so each works on memory that stays until MPI has finished.
#pragma once

#include "distributed/engine/engine.hpp"
#include "distributed/mpi/mpi_library.hpp"

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace weft::detail::mpi {

/// A copy of a communicator, for the collectives of one communicator of ours. MPI makes it while others go on.
class collective_group final : public engine_group {
 public:
  /// `parent` keeps what is copied.
  collective_group(const library& calls, handle from, std::shared_ptr<const void> parent)
      : calls_(calls), parent_(std::move(parent)) {
    began_ = calls_.comm_idup(from, &comm_, &request_);
  }
  ~collective_group() override = default;

  /// True once it is there, or will never be.
  [[nodiscard]] bool is_settled();
  /// MPI's code.
  [[nodiscard]] int began() const { return began_; }
  [[nodiscard]] handle comm() const { return comm_; }
  /// Gives the copy back; before MPI_Finalize.
  void free();

 private:
  const library& calls_;
  std::shared_ptr<const void> parent_;
  handle comm_ = 0;  // MPI writes both until it has finished
  handle request_ = 0;
  int began_ = success;
  bool is_there_ = false;
};

/// One collective of this rank.
class collective_work {
 public:
  collective_work(std::shared_ptr<collective_group> of, const engine_call& call);
  /// MPI's code. Once the group is settled.
  [[nodiscard]] int begin(const library& calls, handle* request);

  std::shared_ptr<collective_group> group;
  bool has_begun = false;
  [[nodiscard]] const std::vector<std::byte>& result() const { return out_; }

 private:
  struct layout {
    std::vector<int> counts, displacements;
  };
  static layout of_blocks(const std::vector<int>& counts);

  engine_call call_;  // without its memory
  std::vector<int> counts_;
  std::vector<std::byte> in_, out_;
  layout blocks_, theirs_;  // as MPI reads them until it has finished
};

}  // namespace weft::detail::mpi
