// SPDX-License-Identifier: Apache-2.0
// What weft declares of UCX lies where UCX's own header says.
#include "distributed/engine/ucp_declarations.hpp"

#include <gtest/gtest.h>

#if __has_include(<ucp/api/ucp.h>)
#include <ucp/api/ucp.h>
#define WEFT_TEST_HAS_UCP
#endif

namespace {

#ifdef WEFT_TEST_HAS_UCP

namespace ours = weft::detail::ucp;

#define SAME_PLACE(our, our_field, their, their_field)                     \
  EXPECT_EQ(offsetof(ours::our, our_field), offsetof(their, their_field)); \
  EXPECT_EQ(sizeof(decltype(ours::our::our_field)), sizeof(decltype(their::their_field)))

TEST(ucx_declarations, have_their_fields_where_the_header_has_them) {
  SAME_PLACE(params, field_mask, ucp_params_t, field_mask);
  SAME_PLACE(params, features, ucp_params_t, features);
  SAME_PLACE(params, estimated_num_eps, ucp_params_t, estimated_num_eps);
  SAME_PLACE(params, name, ucp_params_t, name);
  SAME_PLACE(worker_params, thread_mode, ucp_worker_params_t, thread_mode);
  SAME_PLACE(worker_params, cpu_mask, ucp_worker_params_t, cpu_mask);
  SAME_PLACE(worker_params, event_fd, ucp_worker_params_t, event_fd);
  SAME_PLACE(worker_params, client_id, ucp_worker_params_t, client_id);
  SAME_PLACE(endpoint_params, to, ucp_ep_params_t, address);
  SAME_PLACE(endpoint_params, error_mode, ucp_ep_params_t, err_mode);
  SAME_PLACE(endpoint_params, on_error, ucp_ep_params_t, err_handler);
  SAME_PLACE(endpoint_params, user_data, ucp_ep_params_t, user_data);
  SAME_PLACE(endpoint_params, local, ucp_ep_params_t, local_sockaddr);
  SAME_PLACE(request_params, field_mask, ucp_request_param_t, op_attr_mask);
  SAME_PLACE(request_params, flags, ucp_request_param_t, flags);
  SAME_PLACE(request_params, call, ucp_request_param_t, cb);
  SAME_PLACE(request_params, user_data, ucp_request_param_t, user_data);
  SAME_PLACE(request_params, memory_handle, ucp_request_param_t, memh);
  SAME_PLACE(message_handler, id, ucp_am_handler_param_t, id);
  SAME_PLACE(message_handler, call, ucp_am_handler_param_t, cb);
  SAME_PLACE(message_handler, user, ucp_am_handler_param_t, arg);
  SAME_PLACE(tag_info, tag, ucp_tag_recv_info_t, sender_tag);
  SAME_PLACE(tag_info, length, ucp_tag_recv_info_t, length);
}

TEST(ucx_declarations, have_the_numbers_of_the_header) {
  EXPECT_EQ(ours::ok, UCS_OK);
  EXPECT_EQ(ours::message_truncated, UCS_ERR_MESSAGE_TRUNCATED);
  EXPECT_EQ(ours::busy, UCS_ERR_BUSY);
  EXPECT_EQ(ours::cancelled, UCS_ERR_CANCELED);
  EXPECT_EQ(ours::params::has_features, std::uint64_t{UCP_PARAM_FIELD_FEATURES});
  EXPECT_EQ(ours::params::has_estimated_eps, std::uint64_t{UCP_PARAM_FIELD_ESTIMATED_NUM_EPS});
  EXPECT_EQ(ours::params::tags, std::uint64_t{UCP_FEATURE_TAG});
  EXPECT_EQ(ours::params::wakeup, std::uint64_t{UCP_FEATURE_WAKEUP});
  EXPECT_EQ(ours::params::active_messages, std::uint64_t{UCP_FEATURE_AM});
  EXPECT_EQ(ours::worker_params::has_thread_mode, std::uint64_t{UCP_WORKER_PARAM_FIELD_THREAD_MODE});
  EXPECT_EQ(ours::worker_params::serialized, UCS_THREAD_MODE_SERIALIZED);
  EXPECT_EQ(ours::endpoint_params::has_address, std::uint64_t{UCP_EP_PARAM_FIELD_REMOTE_ADDRESS});
  EXPECT_EQ(ours::endpoint_params::has_error_mode, std::uint64_t{UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE});
  EXPECT_EQ(ours::endpoint_params::has_error_handler, std::uint64_t{UCP_EP_PARAM_FIELD_ERR_HANDLER});
  EXPECT_EQ(ours::endpoint_params::peer_errors, UCP_ERR_HANDLING_MODE_PEER);
  EXPECT_EQ(ours::request_params::has_callback, std::uint32_t{UCP_OP_ATTR_FIELD_CALLBACK});
  EXPECT_EQ(ours::request_params::has_user_data, std::uint32_t{UCP_OP_ATTR_FIELD_USER_DATA});
  EXPECT_EQ(ours::request_params::has_flags, std::uint32_t{UCP_OP_ATTR_FIELD_FLAGS});
  EXPECT_EQ(ours::request_params::never_at_once, std::uint32_t{UCP_OP_ATTR_FLAG_NO_IMM_CMPL});
  EXPECT_EQ(ours::request_params::close_by_force, std::uint32_t{UCP_EP_CLOSE_FLAG_FORCE});
  EXPECT_EQ(ours::message_handler::has_id, std::uint64_t{UCP_AM_HANDLER_PARAM_FIELD_ID});
  EXPECT_EQ(ours::message_handler::has_call, std::uint64_t{UCP_AM_HANDLER_PARAM_FIELD_CB});
  EXPECT_TRUE(ours::is_error(UCS_STATUS_PTR(UCS_ERR_LAST)));
  EXPECT_FALSE(ours::is_error(nullptr));
}

#else

TEST(ucx_declarations, have_their_fields_where_the_header_has_them) {
  GTEST_SKIP() << "no <ucp/api/ucp.h> (libucx-dev)";
}

#endif

}  // namespace
