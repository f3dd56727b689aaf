// SPDX-License-Identifier: Apache-2.0
// What a driver of OpenCL gets wrong: platforms and devices that cannot be used, memory and commands that it refuses.
// What is well goes on.
#include "support/played_opencl.hpp"
#include "support/samples.hpp"
#include "weft/channel/message_queue.hpp"
#include "weft/core/log.hpp"
#include "weft/exec/launch.hpp"
#include "weft/memory/fill.hpp"
#include "weft/memory/peer_access.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <dlfcn.h>
#include <latch>
#include <string>
#include <vector>

namespace opencl_faults_test {

using samples::byte_buffer;
using samples::error_of;
using samples::opencl_memory;
using samples::played_options;
using samples::real_driver;

WEFT_KERNEL(increments, (WEFT_INOUT(uint32_t) values), { values[i] = values[i] + 1U; });
WEFT_KERNEL(adds_up, (WEFT_IN(uint32_t) values, WEFT_INOUT(uint64_t, reduce(sum)) total), { total[0] += values[i]; });

/// What the functions of a test's driver do wrong; they are plain functions, so it lies here.
struct played_faults {
  weft::opencl::api real;
  cl_platform_id broken = nullptr;  // a platform beside the real one
  cl_device_id refused = nullptr;   // a device that says of `property` that it has none
  cl_device_info property = 0;
  std::atomic<bool> memory_is_full{false};
  std::atomic<bool> kernels_fail{false};
  std::atomic<int> copies{0};
  std::atomic<int> other_moves{0};
  cl_event held = nullptr;  // what reads come after: a test's own
};
played_faults faults;

class opencl_faults : public samples::opencl_test {
 protected:
  void SetUp() override {
    samples::opencl_test::SetUp();
    if (IsSkipped()) return;
    faults.real = real_driver();
    faults.broken = nullptr;
    faults.refused = nullptr;
    faults.property = 0;
    faults.memory_is_full = faults.kernels_fail = false;
    faults.copies = faults.other_moves = 0;
    faults.held = nullptr;
    before_ = weft::set_log_hook([](weft::log_level, std::string_view) {});  // what is left out is logged too
  }
  void TearDown() override {
    if (!IsSkipped()) weft::set_log_hook(before_);
  }

 private:
  decltype(weft::set_log_hook({})) before_;
};
INSTANTIATE_TEST_SUITE_P(memories, opencl_faults, samples::both_memories, samples::name_of_memory);

cl_int CL_API_CALL one_platform_more(cl_uint room, cl_platform_id* platforms, cl_uint* count) {
  cl_uint real = 0;
  const cl_int status =
      faults.real.clGetPlatformIDs(room > 0 ? room - 1 : 0, room > 1 ? platforms + 1 : nullptr, &real);
  if (room > 0 && platforms != nullptr) platforms[0] = faults.broken;
  if (count != nullptr) *count = real + 1;
  return status;
}
cl_int CL_API_CALL names_of_platforms(cl_platform_id platform, cl_platform_info what, std::size_t room, void* into,
                                      std::size_t* size) {
  if (platform != faults.broken) return faults.real.clGetPlatformInfo(platform, what, room, into, size);
  static constexpr char name[] = "Abacus";
  if (size != nullptr) *size = sizeof name;
  if (into != nullptr && room >= sizeof name) std::memcpy(into, name, sizeof name);
  return CL_SUCCESS;
}
cl_int CL_API_CALL no_devices_of_the_broken(cl_platform_id platform, cl_device_type type, cl_uint room,
                                            cl_device_id* into, cl_uint* count) {
  if (platform == faults.broken) return CL_OUT_OF_HOST_MEMORY;
  return faults.real.clGetDeviceIDs(platform, type, room, into, count);
}
cl_int CL_API_CALL facts_with_a_lack(cl_device_id device, cl_device_info what, std::size_t room, void* into,
                                     std::size_t* size) {
  const cl_int status = faults.real.clGetDeviceInfo(device, what, room, into, size);
  if (device == faults.refused && what == faults.property && into != nullptr) std::memset(into, 0, room);
  return status;
}
cl_context CL_API_CALL no_context(const cl_context_properties*, cl_uint, const cl_device_id*,
                                  void(CL_CALLBACK*)(const char*, const void*, std::size_t, void*), void*,
                                  cl_int* status) {
  *status = CL_OUT_OF_RESOURCES;
  return nullptr;
}
cl_mem CL_API_CALL buffers_while_there_is_room(cl_context context, cl_mem_flags flags, std::size_t size, void* host,
                                               cl_int* status) {
  if (!faults.memory_is_full) return faults.real.clCreateBuffer(context, flags, size, host, status);
  *status = CL_MEM_OBJECT_ALLOCATION_FAILURE;
  return nullptr;
}
void* CL_API_CALL shared_memory_while_there_is_room(cl_context context, cl_svm_mem_flags flags, std::size_t size,
                                                    cl_uint alignment) {
  return faults.memory_is_full ? nullptr : faults.real.clSVMAlloc(context, flags, size, alignment);
}
cl_int CL_API_CALL kernels_that_may_fail(cl_command_queue queue, cl_kernel kernel, cl_uint dimensions,
                                         const std::size_t* offset, const std::size_t* global, const std::size_t* group,
                                         cl_uint waits, const cl_event* wait, cl_event* ended) {
  if (faults.kernels_fail) return CL_OUT_OF_RESOURCES;
  return faults.real.clEnqueueNDRangeKernel(queue, kernel, dimensions, offset, global, group, waits, wait, ended);
}
cl_int CL_API_CALL counted_copies(cl_command_queue queue, cl_mem src, cl_mem dst, std::size_t from, std::size_t to,
                                  std::size_t size, cl_uint waits, const cl_event* wait, cl_event* ended) {
  ++faults.copies;
  return faults.real.clEnqueueCopyBuffer(queue, src, dst, from, to, size, waits, wait, ended);
}
cl_int CL_API_CALL counted_reads(cl_command_queue queue, cl_mem src, cl_bool waiting, std::size_t from,
                                 std::size_t size, void* into, cl_uint waits, const cl_event* wait, cl_event* ended) {
  ++faults.other_moves;
  return faults.real.clEnqueueReadBuffer(queue, src, waiting, from, size, into, waits, wait, ended);
}
/// A function of the library that the backend does not call.
template <class F>
F* more_of_opencl(const char* name) {
  return reinterpret_cast<F*>(::dlsym(::dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL), name));
}
cl_int CL_API_CALL reads_that_are_held(cl_command_queue queue, cl_mem src, cl_bool waiting, std::size_t from,
                                       std::size_t size, void* into, cl_uint, const cl_event*, cl_event* ended) {
  if (faults.held == nullptr) {
    cl_context context = nullptr;
    more_of_opencl<decltype(::clGetCommandQueueInfo)>("clGetCommandQueueInfo")(queue, CL_QUEUE_CONTEXT, sizeof context,
                                                                               &context, nullptr);
    faults.held = more_of_opencl<decltype(::clCreateUserEvent)>("clCreateUserEvent")(context, nullptr);
  }
  return faults.real.clEnqueueReadBuffer(queue, src, waiting, from, size, into, 1, &faults.held, ended);
}
/// One device of the host beside OpenCL, whose reads into host memory wait to be let go.
weft::machine beside_held_reads(samples::opencl_memory how) {
  weft::opencl::api driver = faults.real;
  driver.clEnqueueReadBuffer = &reads_that_are_held;
  weft::machine_options options = played_options(driver, how);
  options.devices = 1;
  options.backend = "host,played";
  return weft::machine{options};
}
void let_reads_go() {
  more_of_opencl<decltype(::clSetUserEventStatus)>("clSetUserEventStatus")(faults.held, CL_COMPLETE);
}

/// A device at a place that all share, as two halves of a card.
cl_int CL_API_CALL facts_of_one_place(cl_device_id device, cl_device_info what, std::size_t room, void* into,
                                      std::size_t* size) {
  static constexpr char extensions[] = "cl_khr_pci_bus_info";
  static constexpr cl_uint place[] = {0, 7, 0, 0};
  const bool is_place = what == 0x410F;  // CL_DEVICE_PCI_BUS_INFO_KHR
  if (!is_place && what != CL_DEVICE_EXTENSIONS) return faults.real.clGetDeviceInfo(device, what, room, into, size);
  const std::size_t length = is_place ? sizeof place : sizeof extensions;
  if (size != nullptr) *size = length;
  if (into != nullptr) std::memcpy(into, is_place ? static_cast<const void*>(place) : extensions, length);
  return CL_SUCCESS;
}
/// The first device as more than a machine may have.
cl_int CL_API_CALL too_many_devices(cl_platform_id platform, cl_device_type type, cl_uint room, cl_device_id* into,
                                    cl_uint* count) {
  if (count != nullptr) *count = weft::max_devices + 1;
  if (room == 0) return CL_SUCCESS;
  const cl_int status = faults.real.clGetDeviceIDs(platform, type, 1, into, nullptr);
  std::fill_n(into, room, *into);
  return status;
}
cl_context CL_API_CALL context_of_the_first(const cl_context_properties* properties, cl_uint, const cl_device_id* first,
                                            void(CL_CALLBACK* told)(const char*, const void*, std::size_t, void*),
                                            void* data, cl_int* status) {
  return faults.real.clCreateContext(properties, 1, first, told, data, status);
}
cl_int CL_API_CALL counted_writes(cl_command_queue queue, cl_mem dst, cl_bool waiting, std::size_t to, std::size_t size,
                                  const void* data, cl_uint waits, const cl_event* wait, cl_event* ended) {
  ++faults.other_moves;
  return faults.real.clEnqueueWriteBuffer(queue, dst, waiting, to, size, data, waits, wait, ended);
}

bool is_told(const weft::machine& m, std::string_view first, std::string_view second) {
  for (const std::string& note : m.notes())
    if (note.find(first) != std::string::npos && note.find(second) != std::string::npos) return true;
  return false;
}

void expect_a_round_trip(const weft::device& on) {
  const auto data = samples::pattern(4097, on.id().index() + 1);
  EXPECT_TRUE(samples::same(samples::contents(samples::filled(on, data)), data)) << to_string(on.id());
}

TEST_P(opencl_faults, a_platform_that_fails_is_told_in_the_notes_and_the_others_go_on) {
  int place = 0;
  faults.broken = reinterpret_cast<cl_platform_id>(&place);
  weft::opencl::api driver = faults.real;
  driver.clGetPlatformIDs = &one_platform_more;
  driver.clGetPlatformInfo = &names_of_platforms;
  driver.clGetDeviceIDs = &no_devices_of_the_broken;
  const weft::machine m{played_options(driver, GetParam())};
  EXPECT_TRUE(is_told(m, "Abacus", "CL_OUT_OF_HOST_MEMORY"));
  for (const weft::device& d : m.devices()) expect_a_round_trip(d);
}

TEST_P(opencl_faults, a_platform_without_a_context_is_the_reason_why_there_is_no_machine) {
  weft::opencl::api driver = faults.real;
  driver.clCreateContext = &no_context;
  const weft::machine_options options = played_options(driver, GetParam());
  const weft::error cause = error_of([&] { const weft::machine m{options}; });
  EXPECT_EQ(cause.code, weft::errc::unsupported) << to_string(cause);
  EXPECT_NE(cause.what.find("no context could be made: CL_OUT_OF_RESOURCES"), std::string::npos) << cause.what;
}

TEST_P(opencl_faults, devices_without_a_compiler_or_memory_are_left_out_with_a_note) {
  cl_platform_id platform = nullptr;
  ASSERT_EQ(faults.real.clGetPlatformIDs(1, &platform, nullptr), CL_SUCCESS);
  cl_uint count = 0;
  ASSERT_EQ(faults.real.clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &faults.refused, &count), CL_SUCCESS);
  if (count < 2) GTEST_SKIP() << "one device";
  weft::opencl::api driver = faults.real;
  driver.clGetDeviceInfo = &facts_with_a_lack;
  const int whole = weft::machine{samples::opencl_options(GetParam())}.device_count();
  const std::pair<cl_device_info, std::string_view> lacks[] = {{CL_DEVICE_COMPILER_AVAILABLE, "it has no compiler"},
                                                               {CL_DEVICE_AVAILABLE, "it is not available"},
                                                               {CL_DEVICE_GLOBAL_MEM_SIZE, "it has no memory"}};
  for (const auto& [property, why] : lacks) {
    faults.property = property;
    const weft::machine m{played_options(driver, GetParam())};
    EXPECT_EQ(m.device_count(), whole - 1) << why;
    EXPECT_TRUE(is_told(m, "is left out", why.substr(why.find(' ')))) << why;
    expect_a_round_trip(m[0]);
  }
}

TEST_P(opencl_faults, devices_that_share_a_place_are_found_and_joined) {
  weft::opencl::api driver = faults.real;
  driver.clGetDeviceInfo = &facts_of_one_place;
  const weft::machine m{played_options(driver, GetParam())};
  if (m.device_count() < 2) GTEST_SKIP() << "one device";
  EXPECT_EQ(m[0].pci_address(), "0000:07:00.0");
  ASSERT_EQ(m.layout().device_count(), m.device_count());
  EXPECT_EQ(m.layout().devices[0].pci_address, "") << "a layout has one device at each place";
  static_cast<void>(weft::capability_between(m, m[0].id(), m[1].id()));
  for (const weft::device& d : m.devices()) expect_a_round_trip(d);
}

TEST_P(opencl_faults, more_devices_than_a_machine_may_have_are_refused_with_the_number) {
  weft::opencl::api driver = faults.real;
  driver.clGetDeviceIDs = &too_many_devices;
  driver.clCreateContext = &context_of_the_first;
  static_cast<void>(played_options(driver, GetParam()));
  const auto opened = samples::open_played({});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, weft::errc::invalid_topology);
  EXPECT_NE(opened.error().what.find("at most 1024"), std::string::npos) << opened.error().what;
}

TEST_P(opencl_faults, later_events_of_a_stream_end_after_the_copies_of_another_backend_although_its_device_was_reset) {
  const weft::machine m = beside_held_reads(GetParam());
  const auto data = samples::pattern(4097, 8);
  const byte_buffer there = samples::filled(m[1], data), here = samples::filled(m[0], data);
  std::vector<std::uint8_t> across(data.size()), again(data.size()), own(data.size());
  const weft::stream order{m[0]};
  weft::copy(order, across, there);
  const weft::event second = weft::copy(order, again, there);  // skipped by the reset: it has not started
  const std::vector<weft::event> later{weft::copy(order, own, here), weft::fill(order, here, std::uint8_t{1}),
                                       order.record()};
  m[0].reset();
  bool is_under_way = !second.ready();
  for (const weft::event& one : later) {
    weft::wait_outcome outcome = weft::wait_outcome::failed;
    static_cast<void>(error_of([&] { outcome = one.wait_for(std::chrono::nanoseconds{0}); }));
    is_under_way = is_under_way && !one.ready() && outcome == weft::wait_outcome::timed_out;
  }
  ASSERT_NE(faults.held, nullptr);
  let_reads_go();
  EXPECT_TRUE(is_under_way) << "the memory would be the program's again";
  for (const weft::event& one : later) EXPECT_NE(error_of([&] { one.wait(); }).what, "");
  EXPECT_TRUE(samples::same(across, data));
  static_cast<void>(error_of([&] { order.synchronize(); }));
  std::latch go{1};
  order.call([&] { go.wait(); });
  const weft::event anew = weft::copy(order, again, there);
  EXPECT_TRUE(later.front().ready()) << "a copy that came after the event";
  go.count_down();
  anew.wait();
  faults.real.clReleaseEvent(faults.held);
}

TEST_P(opencl_faults, an_event_of_a_batch_ends_after_the_copies_of_another_backend_although_its_device_was_reset) {
  const weft::machine m = beside_held_reads(GetParam());
  const auto data = samples::pattern(4097, 8);
  const byte_buffer there = samples::filled(m[1], data), here = samples::filled(m[0], data);
  std::vector<std::uint8_t> across(data.size()), own(data.size());
  const weft::stream order{m[0]};
  const std::vector<weft::copy_part> parts{weft::part(across, there), weft::part(own, here)};
  const weft::event batch = weft::copy_batch(order, parts);
  const weft::event recorded = order.record();
  m[0].reset();
  const bool is_under_way = !batch.ready() && !recorded.ready();
  ASSERT_NE(faults.held, nullptr);
  let_reads_go();
  EXPECT_TRUE(is_under_way) << "the memory of the batch would be the program's again";
  EXPECT_NE(error_of([&] { batch.wait(); }).what, "");
  EXPECT_TRUE(samples::same(across, data));
  m.synchronize();
  faults.real.clReleaseEvent(faults.held);
}

TEST_P(opencl_faults, a_driver_without_room_is_out_of_memory_and_what_was_there_stays) {
  weft::opencl::api driver = faults.real;
  driver.clCreateBuffer = &buffers_while_there_is_room;
  driver.clSVMAlloc = &shared_memory_while_there_is_room;
  const weft::machine m{played_options(driver, GetParam())};
  const auto data = samples::pattern(70001, 3);
  const byte_buffer before = samples::filled(m[0], data);
  const auto free = m[0].free_memory();
  faults.memory_is_full = true;
  const weft::error cause = error_of([&] { const byte_buffer more{m[0], 1U << 20}; });
  EXPECT_EQ(cause.code, weft::errc::out_of_memory) << to_string(cause);
  EXPECT_NE(cause.what.find("gpu0"), std::string::npos) << cause.what;
  EXPECT_EQ(m[0].free_memory().value(), free.value()) << "what was not given is not charged";
  faults.memory_is_full = false;
  EXPECT_TRUE(samples::same(samples::contents(before), data));
  for (const weft::device& d : m.devices()) expect_a_round_trip(d);
}

TEST_P(opencl_faults, a_reduction_without_room_for_its_lanes_fails_and_leaves_the_total) {
  weft::opencl::api driver = faults.real;
  driver.clCreateBuffer = &buffers_while_there_is_room;
  const weft::machine m{played_options(driver, GetParam())};
  const weft::buffer<std::uint32_t> values{m[0], 10'000};
  weft::fill(values, 1U);
  const weft::buffer<std::uint64_t> total{m[0], 1};
  weft::fill(total, std::uint64_t{7});
  faults.memory_is_full = true;
  const weft::error cause =
      error_of([&] { weft::launch<adds_up>(weft::stream{m[0]}, weft::range(10'000), values, total).wait(); });
  faults.memory_is_full = false;
  EXPECT_EQ(cause.code, weft::errc::out_of_memory) << to_string(cause);
  EXPECT_NE(cause.what.find("adds_up"), std::string::npos) << cause.what;
  weft::launch<adds_up>(weft::stream{m[0]}, weft::range(10'000), values, total).wait();
  std::vector<std::uint64_t> got(1);
  weft::copy(got, total);
  EXPECT_EQ(got[0], 10'007U) << "the launch that failed has added something, or the next one not";
}

TEST_P(opencl_faults, a_kernel_that_the_driver_refuses_fails_alone) {
  weft::opencl::api driver = faults.real;
  driver.clEnqueueNDRangeKernel = &kernels_that_may_fail;
  const weft::machine m{played_options(driver, GetParam())};
  const weft::buffer<std::uint32_t> values{m[0], 1000};
  weft::fill(values, 1U);
  faults.kernels_fail = true;
  const weft::error cause =
      error_of([&] { weft::launch<increments>(weft::stream{m[0]}, weft::range(1000), values).wait(); });
  faults.kernels_fail = false;
  EXPECT_NE(cause.what.find("increments"), std::string::npos) << to_string(cause);
  weft::launch<increments>(weft::stream{m[0]}, weft::range(1000), values).wait();
  std::vector<std::uint32_t> got(1000);
  weft::copy(got, values);
  EXPECT_EQ(got, std::vector<std::uint32_t>(1000, 2U));
}

TEST_P(opencl_faults, a_copy_inside_a_context_is_one_command_without_access) {
  weft::opencl::api driver = faults.real;
  driver.clEnqueueCopyBuffer = &counted_copies;
  driver.clEnqueueReadBuffer = &counted_reads;
  driver.clEnqueueWriteBuffer = &counted_writes;
  const weft::machine m{played_options(driver, GetParam())};
  if (m.device_count() < 2) GTEST_SKIP() << "one device";
  const auto data = samples::pattern(3'000'001, 4);
  const byte_buffer src = samples::filled(m[0], data);
  const byte_buffer dst{m[1], data.size()};
  weft::copy(dst, src);  // the first use of a pair verifies it
  faults.copies = faults.other_moves = 0;
  const weft::copy_counters before = weft::counters(m);
  const weft::copy_report report = weft::copy(dst, src);
  EXPECT_EQ(report.path, weft::copy_path::direct);
  EXPECT_EQ(faults.copies, 1);
  EXPECT_EQ(faults.other_moves, 0) << "something went through the host";
  EXPECT_EQ(weft::counters(m).direct.copies, before.direct.copies + 1);
  EXPECT_EQ(weft::counters(m).direct.bytes, before.direct.bytes + data.size());
  EXPECT_TRUE(samples::same(samples::contents(dst), data));
}

TEST_P(opencl_faults, a_box_that_is_packed_without_gaps_is_not_moved_row_by_row) {
  weft::opencl::api driver = faults.real;
  driver.clEnqueueCopyBuffer = &counted_copies;
  driver.clEnqueueReadBuffer = &counted_reads;
  driver.clEnqueueWriteBuffer = &counted_writes;
  const weft::machine m{played_options(driver, GetParam())};
  const auto data = samples::pattern(64UL * 40, 4);
  const byte_buffer grid = samples::filled(m[0], data), packed{m[0], 37UL * 40};
  std::vector<std::uint8_t> got(packed.size());
  faults.copies = faults.other_moves = 0;
  using box = weft::box<std::uint8_t>;
  weft::copy_box(box{packed, {}, 0, 37}, box{grid, {}, 0, 64}, {37, 40});
  weft::copy_box(box{{}, got, 0, 37}, box{grid, {}, 0, 64}, {37, 40});
  EXPECT_EQ(faults.copies + faults.other_moves, 0);
  EXPECT_TRUE(samples::same(samples::contents(packed), got));
  for (std::size_t k = 0; k < got.size(); ++k) ASSERT_EQ(got[k], data[k / 37 * 64 + k % 37]) << k;
}

}  // namespace opencl_faults_test
