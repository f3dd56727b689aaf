// SPDX-License-Identifier: Apache-2.0
// What processes of this user have found about pairs of real devices since the computer was started, so that the next
// one need not try them again: a file in the user's cache.
#pragma once

#include "weft/backend/backend.hpp"

#include <map>
#include <optional>
#include <string>

namespace weft::detail {

/// Thread: one.
class peer_record {
 public:
  /// `folder`: of the cache; empty keeps nothing. A file that cannot be read or written keeps nothing either.
  explicit peer_record(std::string folder = user_folder());

  [[nodiscard]] std::optional<peer_delivery> find(const device_description& from, const device_description& to,
                                                  peer_way way) const;
  void add(const device_description& from, const device_description& to, peer_way way, const peer_delivery& found);

  /// Whether another process can find the pair again: by the driver's version and two PCI addresses.
  [[nodiscard]] static bool is_kept(const device_description& from, const device_description& to);
  /// XDG_CACHE_HOME/weft or HOME/.cache/weft; empty in a program with other rights than its user's.
  [[nodiscard]] static std::string user_folder();

 private:
  std::string folder_;
  std::map<std::string, peer_delivery> known_;
};

}  // namespace weft::detail
