// SPDX-License-Identifier: Apache-2.0
#include "collective/ranks/rank_call.hpp"

#include "collective/fold/fold.hpp"
#include "collective/schedule/collective_kind.hpp"
#include "core/errors/make_error.hpp"
#include "weft/core/raise.hpp"

namespace weft::detail {
namespace {

constexpr std::uint64_t mixed(std::uint64_t hash, std::uint64_t more) {
  hash = (hash ^ more) * 0x9e3779b97f4a7c15;
  return hash ^ hash >> 29;
}

std::uint64_t packed(const call_terms& t) {
  return static_cast<std::uint64_t>(t.what) | static_cast<std::uint64_t>(t.type) << 8 |
         static_cast<std::uint64_t>(t.reduces() ? t.op : reduction_op::kind::sum) << 16 |
         static_cast<std::uint64_t>(t.algorithm) << 24 | static_cast<std::uint64_t>(t.root) << 32 |
         static_cast<std::uint64_t>(t.is_uneven) << 40 | static_cast<std::uint64_t>(t.by_rank_order) << 41;
}

}  // namespace

// a barrier is no collective: it does none of this

bool call_terms::reduces() const { return detail::reduces(static_cast<collective>(what)); }

bool call_terms::has_root() const { return detail::has_root(static_cast<collective>(what)); }

bool call_terms::has_blocks() const {
  return what == static_cast<int>(collective::reduce_scatter) || what == static_cast<int>(collective::all_gather) ||
         what == static_cast<int>(collective::scatter) || what == static_cast<int>(collective::gather) ||
         what == static_cast<int>(collective::all_to_all);
}

std::uint64_t call_terms::fingerprint() const {
  // each in a step of its own: two numbers in one word would cancel each other out
  std::uint64_t hash = mixed(mixed(mixed(1, packed(*this)), static_cast<std::uint64_t>(count)), counts_hash);
  if (reduces() && op == reduction_op::kind::user) hash = mixed(hash, user->hash);
  return hash;
}

void call_terms::write(call_record& record, std::uint64_t number) const {
  record.number.store(number, std::memory_order_relaxed);
  record.kind.store(packed(*this), std::memory_order_relaxed);
  record.count.store(static_cast<std::uint64_t>(count), std::memory_order_relaxed);
  record.op.set(reduces() && op == reduction_op::kind::user ? std::string_view{user->name} : std::string_view{});
  record.refused.set({});
}

std::string text_of(const call_record& record) {
  const std::uint64_t kind = record.kind.load(std::memory_order_relaxed);
  const auto count = static_cast<std::int64_t>(record.count.load(std::memory_order_relaxed));
  const auto byte = [kind](int at) { return static_cast<int>(kind >> at & 0xff); };
  const std::string refused = record.refused.get();
  if (!refused.empty()) return "a call that it refuses: " + refused;
  if (byte(0) == call_terms::barrier) return "barrier";
  if (byte(0) > call_terms::barrier || byte(8) >= data_type_count ||
      byte(16) > static_cast<int>(reduction_op::kind::user) || byte(24) >= collective_algorithm_count) {
    return "something that is no call";
  }
  call_terms t;
  t.what = byte(0);
  const bool is_uneven = (kind >> 40 & 1) != 0;
  std::string made{to_string(static_cast<collective>(t.what))};
  made += t.has_blocks() && !is_uneven ? " of blocks of " : " of ";
  made += std::to_string(count) + " " + std::string{to_string(static_cast<data_type>(byte(8)))};
  if (is_uneven) made += " in uneven blocks";
  if (t.reduces()) {
    const std::string name = record.op.get();
    made += ", " + (name.empty() ? std::string{to_string(static_cast<reduction_op::kind>(byte(16)))} : name);
  }
  if (t.has_root()) {
    const bool is_from =
        t.what == static_cast<int>(collective::broadcast) || t.what == static_cast<int>(collective::scatter);
    made += (is_from ? " from rank " : " to rank ") + std::to_string(byte(32));
  }
  if (byte(24) != static_cast<int>(collective_algorithm::automatic)) {
    made += ", by " + std::string{to_string(static_cast<collective_algorithm>(byte(24)))};
  }
  return made;
}

error error_of(const std::exception& failure) {
  const auto* const known = dynamic_cast<const error_exception*>(&failure);
  return known != nullptr ? known->cause() : no_host_memory();
}

std::uint64_t hash_of(std::span<const std::int64_t> counts) {
  std::uint64_t hash = counts.size() + 1;
  for (const std::int64_t count : counts) hash = mixed(hash, static_cast<std::uint64_t>(count));
  return hash;
}

}  // namespace weft::detail
