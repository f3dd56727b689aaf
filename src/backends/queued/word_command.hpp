// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "backend/memory_word.hpp"
#include "backend/word_watch.hpp"
#include "backends/queued/scheduler.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace weft::queued {

/// A write of a word, or a wait for one, by a thread of the host that reaches the memory. `Kept` keeps it.
template <class Kept>
class word_command final : public command {
 public:
  /// `refused` says why the stream's device may not use the word when its turn comes, if so.
  word_command(const scheduler& home, const word_request& request, bool waits, std::byte* at, Kept memory,
               std::function<std::optional<error>()> refused)
      : command(place::host),
        scheduler_(home),
        request_(request),
        waits_(waits),
        at_(at),
        memory_(std::move(memory)),
        refused_(std::move(refused)) {
    note.kind = waits ? trace_kind::wait : trace_kind::fill;
    if (!waits) note.bytes = request.size;
  }

  [[nodiscard]] std::shared_ptr<const error> run_here() override {
    if (auto cause = refused_()) return std::make_shared<const error>(std::move(*cause));
    if (!waits_) {
      detail::store_word(at_, request_.size, request_.value);
      detail::word_written();
      return nullptr;
    }
    const auto holds = [this] { return detail::compares(request_, detail::load_word(at_, request_.size)); };
    detail::watch_word([&] { return holds() || scheduler_.is_over(device); }, {}, scheduler_.policy());
    return holds() ? nullptr : scheduler_.over(device);
  }
  void let_go() noexcept override {
    refused_ = nullptr;
    memory_ = Kept{};
  }
  [[nodiscard]] std::string name() const override { return waits_ ? "waits for a value" : "value"; }

 private:
  const scheduler& scheduler_;
  const word_request request_;
  const bool waits_;
  std::byte* const at_;
  Kept memory_;
  std::function<std::optional<error>()> refused_;
};

}  // namespace weft::queued
