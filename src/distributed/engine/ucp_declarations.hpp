// SPDX-License-Identifier: Apache-2.0
// What of UCX's protocol layer weft calls, declared here so that building weft needs no header of UCX. Layouts and
// numbers are those of ucp.h 1.13, which later releases extend at the end; `ctest -R ucx_declarations` compares them
// with the header where it is installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <sys/socket.h>

namespace weft::detail::ucp {

using status = std::int32_t;  // 0: well; 1: under way; below 0: an error
inline constexpr status ok = 0;
inline constexpr status message_truncated = -9;
inline constexpr status busy = -15;
inline constexpr status cancelled = -16;

struct context;
struct worker;
struct endpoint;
struct config;
struct address;

/// What a call that starts something returns: null when it is done already, an error, or a request.
using started = void*;
[[nodiscard]] inline bool is_error(started s) noexcept {
  return reinterpret_cast<std::uintptr_t>(s) >= static_cast<std::uintptr_t>(-100);
}
[[nodiscard]] inline status error_of(started s) noexcept {
  return static_cast<status>(reinterpret_cast<std::intptr_t>(s));
}

struct params {
  static constexpr std::uint64_t has_features = 1U << 0U, has_estimated_eps = 1U << 6U;
  static constexpr std::uint64_t tags = 1U << 0U, wakeup = 1U << 4U, active_messages = 1U << 6U;
  std::uint64_t field_mask = 0;
  std::uint64_t features = 0;
  std::size_t request_size = 0;
  void (*request_init)(void*) = nullptr;
  void (*request_cleanup)(void*) = nullptr;
  std::uint64_t tag_sender_mask = 0;
  int mt_workers_shared = 0;
  std::size_t estimated_num_eps = 0;
  std::size_t estimated_num_ppn = 0;
  const char* name = nullptr;
};

struct worker_params {
  static constexpr std::uint64_t has_thread_mode = 1U << 0U;
  static constexpr int serialized = 1;
  std::uint64_t field_mask = 0;
  int thread_mode = 0;
  unsigned long cpu_mask[16]{};
  unsigned events = 0;
  void* user_data = nullptr;
  int event_fd = -1;
  std::uint64_t flags = 0;
  const char* name = nullptr;
  std::size_t am_alignment = 0;
  std::uint64_t client_id = 0;
};

struct error_handler {
  void (*call)(void* user, endpoint* ep, status why) = nullptr;
  void* user = nullptr;
};

struct endpoint_params {
  static constexpr std::uint64_t has_address = 1U << 0U, has_error_mode = 1U << 1U, has_error_handler = 1U << 2U;
  static constexpr int peer_errors = 1;
  struct socket_address {
    const sockaddr* address = nullptr;
    socklen_t size = 0;
  };
  std::uint64_t field_mask = 0;
  const ucp::address* to = nullptr;
  int error_mode = 0;
  error_handler on_error;
  void* user_data = nullptr;
  unsigned flags = 0;
  socket_address peer;
  void* conn_request = nullptr;
  const char* name = nullptr;
  socket_address local;
};

struct tag_info {
  std::uint64_t tag = 0;
  std::size_t length = 0;
};

struct request_params {
  static constexpr std::uint32_t has_callback = 1U << 1U, has_user_data = 1U << 2U, has_flags = 1U << 4U,
                                 never_at_once = 1U << 16U;
  static constexpr std::uint32_t close_by_force = 1U << 0U;
  std::uint32_t field_mask = 0;
  std::uint32_t flags = 0;
  void* request = nullptr;
  union {
    void (*sent)(void* request, status how, void* user) = nullptr;
    void (*received)(void* request, status how, const tag_info* info, void* user);
  } call;
  std::uint64_t datatype = 0;
  void* user_data = nullptr;
  void* reply_buffer = nullptr;
  int memory_type = 0;
  void* receive_info = nullptr;
  void* memory_handle = nullptr;
};

struct message_handler {
  static constexpr std::uint64_t has_id = 1U << 0U, has_call = 1U << 2U, has_user = 1U << 3U;
  std::uint64_t field_mask = 0;
  unsigned id = 0;
  std::uint32_t flags = 0;
  status (*call)(void* user, const void* header, std::size_t header_size, void* data, std::size_t size,
                 const void* params) = nullptr;
  void* user = nullptr;
};

/// The entry points, by their names.
struct calls {
  void (*get_version)(unsigned*, unsigned*, unsigned*) = nullptr;
  status (*config_read)(const char* prefix, const char* file, config**) = nullptr;
  status (*config_modify)(config*, const char* name, const char* value) = nullptr;
  void (*config_release)(config*) = nullptr;
  status (*init_version)(unsigned, unsigned, const params*, const config*, context**) = nullptr;
  void (*cleanup)(context*) = nullptr;
  status (*worker_create)(context*, const worker_params*, worker**) = nullptr;
  void (*worker_destroy)(worker*) = nullptr;
  status (*worker_get_address)(worker*, address**, std::size_t*) = nullptr;
  void (*worker_release_address)(worker*, address*) = nullptr;
  unsigned (*worker_progress)(worker*) = nullptr;
  status (*worker_get_efd)(worker*, int*) = nullptr;
  status (*worker_arm)(worker*) = nullptr;
  status (*worker_set_am_recv_handler)(worker*, const message_handler*) = nullptr;
  status (*ep_create)(worker*, const endpoint_params*, endpoint**) = nullptr;
  void (*ep_print_info)(endpoint*, std::FILE*) = nullptr;
  started (*ep_flush_nbx)(endpoint*, const request_params*) = nullptr;
  started (*ep_close_nbx)(endpoint*, const request_params*) = nullptr;
  started (*tag_send_nbx)(endpoint*, const void*, std::size_t, std::uint64_t tag, const request_params*) = nullptr;
  started (*tag_recv_nbx)(worker*, void*, std::size_t, std::uint64_t tag, std::uint64_t mask,
                          const request_params*) = nullptr;
  started (*am_send_nbx)(endpoint*, unsigned id, const void* header, std::size_t header_size, const void*, std::size_t,
                         const request_params*) = nullptr;
  void (*request_cancel)(worker*, void*) = nullptr;
  status (*request_check_status)(void*) = nullptr;
  void (*request_free)(void*) = nullptr;
  const char* (*status_string)(status) = nullptr;  // of libucs
};

}  // namespace weft::detail::ucp
