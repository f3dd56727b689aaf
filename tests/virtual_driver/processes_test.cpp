// SPDX-License-Identifier: Apache-2.0
// Handles of memory and events, between processes.
#include "virtual_driver/loaded_driver.hpp"

#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sys/socket.h>

namespace processes_test {

using namespace virtual_cuda;

// What two processes tell each other, over a socket: neither waits for ever, since the other's end closes with it.
struct line {
  int ends[2] = {-1, -1};
  line() { EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0); }
  template <class T>
  static void say(int end, const T& value) {
    EXPECT_EQ(::send(end, &value, sizeof value, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof value));
  }
  template <class T>
  static T hear(int end) {
    T value{};
    EXPECT_EQ(::recv(end, &value, sizeof value, 0), static_cast<ssize_t>(sizeof value));
    return value;
  }
};

/// An exporter and an importer, each in a process of its own that opens the driver itself.
void with_two(const std::function<void(int)>& exporter, const std::function<void(int)>& importer,
              int exporter_ends = 0) {
  line wire;
  processes::child first{[&] {
    ::close(wire.ends[1]);
    exporter(wire.ends[0]);
    std::fflush(nullptr);
    return failures_so_far() != 0 ? 1 : 0;
  }};
  processes::child second{[&] {
    ::close(wire.ends[0]);
    importer(wire.ends[1]);
    std::fflush(nullptr);
    return failures_so_far() != 0 ? 1 : 0;
  }};
  ::close(wire.ends[0]);
  ::close(wire.ends[1]);
  EXPECT_EQ(second.wait(), 0);
  EXPECT_EQ(first.wait(), exporter_ends);
}

TEST(virtual_driver_processes, memory_is_opened_by_another_process_and_counted) {
  with_two(
      [](int end) {
        session cu;
        const CUdeviceptr a = cu.allocate(8192);
        cu.write(a + 4096, 11);
        CUipcMemHandle handle{};
        CUipcMemHandle again{};
        ASSERT_EQ(cu.cuIpcGetMemHandle(&handle, a), CUDA_SUCCESS);
        ASSERT_EQ(cu.cuIpcGetMemHandle(&again, a), CUDA_SUCCESS);
        EXPECT_EQ(std::memcmp(&handle, &again, sizeof handle), 0);
        CUdeviceptr here = 0;
        EXPECT_EQ(cu.cuIpcOpenMemHandle(&here, handle, ipc_lazy_enable_peer_access), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(cu.cuIpcCloseMemHandle(a), CUDA_ERROR_INVALID_VALUE);
        line::say(end, handle);
        static_cast<void>(line::hear<int>(end));
        EXPECT_EQ(cu.read<int>(a), 22);
      },
      [](int end) {
        const auto handle = line::hear<CUipcMemHandle>(end);
        session cu;
        CUdeviceptr at = 0;
        CUdeviceptr same = 0;
        EXPECT_EQ(cu.cuIpcOpenMemHandle(&at, handle, 0), CUDA_ERROR_INVALID_VALUE);
        CUipcMemHandle broken = handle;
        broken.reserved[30] ^= 1;
        EXPECT_EQ(cu.cuIpcOpenMemHandle(&at, broken, 1), CUDA_ERROR_INVALID_VALUE);
        ASSERT_EQ(cu.cuIpcOpenMemHandle(&at, handle, 1), CUDA_SUCCESS);
        ASSERT_EQ(cu.cuIpcOpenMemHandle(&same, handle, 1), CUDA_SUCCESS);
        EXPECT_EQ(at, same);
        EXPECT_EQ(cu.read<int>(at + 4096), 11);
        cu.write(at, 22);
        EXPECT_EQ(cu.cuIpcCloseMemHandle(at), CUDA_SUCCESS);
        EXPECT_EQ(cu.read<int>(at + 4096), 11) << "opened twice";
        EXPECT_EQ(cu.cuIpcCloseMemHandle(at), CUDA_SUCCESS);
        EXPECT_EQ(cu.cuIpcCloseMemHandle(at), CUDA_ERROR_INVALID_VALUE);
        line::say(end, 1);
      });
}

TEST(virtual_driver_processes, each_device_s_context_opens_a_handle_for_itself) {
  with_two(
      [](int end) {
        session cu;
        const CUdeviceptr a = cu.allocate(64);
        cu.write(a, 11);
        CUipcMemHandle handle{};
        ASSERT_EQ(cu.cuIpcGetMemHandle(&handle, a), CUDA_SUCCESS);
        line::say(end, handle);
        static_cast<void>(line::hear<int>(end));
      },
      [](int end) {
        const auto handle = line::hear<CUipcMemHandle>(end);
        session cu{2};
        CUdeviceptr at[2] = {0, 0};
        for (const int device : {0, 1}) {
          cu.use(device);
          ASSERT_EQ(cu.cuIpcOpenMemHandle(&at[device], handle, 1), CUDA_SUCCESS);
          EXPECT_EQ(cu.read<int>(at[device]), 11);
        }
        EXPECT_NE(at[0], at[1]);
        EXPECT_EQ(cu.cuIpcCloseMemHandle(at[1]), CUDA_SUCCESS);
        EXPECT_EQ(cu.cuIpcCloseMemHandle(at[1]), CUDA_ERROR_INVALID_VALUE);
        cu.use(0);
        EXPECT_EQ(cu.read<int>(at[0]), 11) << "that of the other is there still";
        line::say(end, 1);
      });
}

TEST(virtual_driver_processes, a_handle_names_one_allocation_and_only_plain_memory) {
  in_child({}, [] {
    session cu;
    const CUdeviceptr a = cu.allocate(4096);
    CUipcMemHandle first{};
    CUipcMemHandle second{};
    ASSERT_EQ(cu.cuIpcGetMemHandle(&first, a), CUDA_SUCCESS);
    ASSERT_EQ(cu.cuMemFree(a), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuIpcGetMemHandle(&second, a), CUDA_ERROR_INVALID_VALUE) << "freed";
    const CUdeviceptr b = cu.allocate(4096);
    EXPECT_EQ(a, b) << "the same address again";
    ASSERT_EQ(cu.cuIpcGetMemHandle(&second, b), CUDA_SUCCESS);
    EXPECT_NE(std::memcmp(&first, &second, sizeof first), 0);
    CUdeviceptr managed = 0;
    ASSERT_EQ(cu.cuMemAllocManaged(&managed, 4096, attach_global), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuIpcGetMemHandle(&second, managed), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST(virtual_driver_processes, the_memory_of_a_process_that_is_gone_cannot_be_opened) {
  with_two(
      [](int end) {
        session cu;
        CUipcMemHandle handle{};
        ASSERT_EQ(cu.cuIpcGetMemHandle(&handle, cu.allocate(4096)), CUDA_SUCCESS);
        line::say(end, handle);
        ::raise(SIGKILL);
      },
      [](int end) {
        const auto handle = line::hear<CUipcMemHandle>(end);
        char nothing = 0;
        EXPECT_EQ(::recv(end, &nothing, 1, 0), 0) << "the other end closes with the process";
        session cu;
        CUdeviceptr at = 0;
        EXPECT_EQ(cu.cuIpcOpenMemHandle(&at, handle, 1), CUDA_ERROR_MAP_FAILED);
      },
      -SIGKILL);
}

TEST(virtual_driver_processes, events_order_two_processes) {
  with_two(
      [](int end) {
        session cu;
        const CUevent plain = cu.event(event_disable_timing);
        CUevent shared = nullptr;
        EXPECT_EQ(cu.cuEventCreate(&shared, event_interprocess), CUDA_ERROR_INVALID_VALUE) << "without timing only";
        shared = cu.event(event_interprocess | event_disable_timing);
        CUipcEventHandle handle{};
        EXPECT_EQ(cu.cuIpcGetEventHandle(&handle, plain), CUDA_ERROR_INVALID_HANDLE);
        ASSERT_EQ(cu.cuIpcGetEventHandle(&handle, shared), CUDA_SUCCESS);
        CUevent here = nullptr;
        EXPECT_EQ(cu.cuIpcOpenEventHandle(&here, handle), CUDA_ERROR_INVALID_CONTEXT);
        const CUdeviceptr word = cu.allocate(4);
        cu.write(word, 0);
        const CUstream s = cu.stream();
        EXPECT_EQ(cu.cuStreamWaitValue32(s, word, 1, wait_value_eq), CUDA_SUCCESS);
        EXPECT_EQ(cu.cuEventRecord(shared, s), CUDA_SUCCESS);
        line::say(end, handle);
        static_cast<void>(line::hear<int>(end));
        EXPECT_EQ(cu.cuStreamWriteValue32(cu.stream(), word, 1, 0), CUDA_SUCCESS);
        EXPECT_EQ(cu.cuStreamSynchronize(s), CUDA_SUCCESS);
        static_cast<void>(line::hear<int>(end));
      },
      [](int end) {
        const auto handle = line::hear<CUipcEventHandle>(end);
        session cu;
        CUevent other = nullptr;
        ASSERT_EQ(cu.cuIpcOpenEventHandle(&other, handle), CUDA_SUCCESS);
        const CUstream s = cu.stream();
        EXPECT_EQ(cu.cuStreamWaitEvent(s, other, 0), CUDA_SUCCESS);
        EXPECT_EQ(cu.cuEventQuery(other), CUDA_ERROR_NOT_READY);
        EXPECT_EQ(cu.cuStreamQuery(s), CUDA_ERROR_NOT_READY);
        line::say(end, 1);
        EXPECT_EQ(cu.cuStreamSynchronize(s), CUDA_SUCCESS);
        EXPECT_EQ(cu.cuEventSynchronize(other), CUDA_SUCCESS);
        float time = 0;
        EXPECT_EQ(cu.cuEventElapsedTime(&time, other, other), CUDA_ERROR_INVALID_HANDLE);
        line::say(end, 1);
      });
}

TEST(virtual_driver_processes, waiting_for_an_event_of_a_process_that_is_killed_ends) {
  with_two(
      [](int end) {
        session cu;
        const CUevent shared = cu.event(event_interprocess | event_disable_timing);
        CUipcEventHandle handle{};
        ASSERT_EQ(cu.cuIpcGetEventHandle(&handle, shared), CUDA_SUCCESS);
        const CUdeviceptr word = cu.allocate(4);
        cu.write(word, 0);
        EXPECT_EQ(cu.cuStreamWaitValue32(nullptr, word, 1, wait_value_eq), CUDA_SUCCESS);
        EXPECT_EQ(cu.cuEventRecord(shared, nullptr), CUDA_SUCCESS);
        line::say(end, handle);
        static_cast<void>(line::hear<int>(end));
        ::raise(SIGKILL);
      },
      [](int end) {
        const auto handle = line::hear<CUipcEventHandle>(end);
        session cu;
        CUevent other = nullptr;
        ASSERT_EQ(cu.cuIpcOpenEventHandle(&other, handle), CUDA_SUCCESS);
        EXPECT_EQ(cu.cuStreamWaitEvent(nullptr, other, 0), CUDA_SUCCESS);
        line::say(end, 1);
        EXPECT_EQ(cu.cuStreamSynchronize(nullptr), CUDA_ERROR_LAUNCH_FAILED);
      },
      -SIGKILL);
}

struct parcel {
  CUmemPoolPtrExportData data;
};

/// What stands for a pool of another process here, by the number of its descriptor there.
CUmemoryPool import_pool(const session& cu, pid_t owner, int number) {
  const std::string path = "/proc/" + std::to_string(owner) + "/fd/" + std::to_string(number);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  EXPECT_GE(fd, 0);
  CUmemoryPool pool = nullptr;
  EXPECT_EQ(cu.cuMemPoolImportFromShareableHandle(&pool, reinterpret_cast<void*>(static_cast<std::intptr_t>(fd)),
                                                  handle_posix_fd, 0),
            CUDA_SUCCESS);
  return pool;
}

TEST(virtual_driver_processes, a_pool_is_imported_without_rights_of_its_exporter) {
  with_two(
      [](int end) {
        session cu;
        CUmemPoolProps properties;
        properties.handle_types = handle_posix_fd;
        CUmemoryPool pool = nullptr;
        ASSERT_EQ(cu.cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
        CUdeviceptr a = 0;
        ASSERT_EQ(cu.cuMemAllocFromPoolAsync(&a, 64, pool, nullptr), CUDA_SUCCESS);
        cu.write(a, 31);
        int fd = -1;
        ASSERT_EQ(cu.cuMemPoolExportToShareableHandle(&fd, pool, handle_posix_fd, 0), CUDA_SUCCESS);
        parcel sent{};
        ASSERT_EQ(cu.cuMemPoolExportPointer(&sent.data, a), CUDA_SUCCESS);
        line::say(end, fd);
        line::say(end, ::getpid());
        line::say(end, sent);
        static_cast<void>(line::hear<int>(end));
      },
      [](int end) {
        const int number = line::hear<int>(end);
        const pid_t owner = line::hear<pid_t>(end);
        auto got = line::hear<parcel>(end);
        session cu;
        const CUmemoryPool pool = import_pool(cu, owner, number);
        CUdeviceptr a = 0;
        EXPECT_EQ(cu.cuMemAllocFromPoolAsync(&a, 64, pool, nullptr), CUDA_ERROR_NOT_PERMITTED);
        ASSERT_EQ(cu.cuMemPoolImportPointer(&a, pool, &got.data), CUDA_SUCCESS);
        EXPECT_EQ(cu.read<int>(a), 31);
        got.data.reserved[8] ^= 1;
        EXPECT_EQ(cu.cuMemPoolImportPointer(&a, pool, &got.data), CUDA_ERROR_INVALID_VALUE);
        line::say(end, 1);
      });
}

TEST(virtual_driver_processes, an_imported_pool_takes_pointers_of_the_pool_that_it_stands_for_alone) {
  with_two(
      [](int end) {
        session cu;
        CUmemPoolProps properties;
        properties.handle_types = handle_posix_fd;
        line::say(end, ::getpid());
        for (int value : {31, 32}) {
          CUmemoryPool pool = nullptr;
          ASSERT_EQ(cu.cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
          int fd = -1;
          ASSERT_EQ(cu.cuMemPoolExportToShareableHandle(&fd, pool, handle_posix_fd, 0), CUDA_SUCCESS);
          CUdeviceptr a = 0;
          ASSERT_EQ(cu.cuMemAllocFromPoolAsync(&a, 64, pool, nullptr), CUDA_SUCCESS);
          cu.write(a, value);
          parcel sent{};
          ASSERT_EQ(cu.cuMemPoolExportPointer(&sent.data, a), CUDA_SUCCESS);
          line::say(end, fd);
          line::say(end, sent);
        }
        static_cast<void>(line::hear<int>(end));
      },
      [](int end) {
        const pid_t owner = line::hear<pid_t>(end);
        session cu;
        CUmemoryPool pools[2];
        parcel parcels[2];
        for (int n : {0, 1}) {
          pools[n] = import_pool(cu, owner, line::hear<int>(end));
          parcels[n] = line::hear<parcel>(end);
        }
        for (int n : {0, 1}) {
          CUdeviceptr a = 0;
          EXPECT_EQ(cu.cuMemPoolImportPointer(&a, pools[1 - n], &parcels[n].data), CUDA_ERROR_INVALID_VALUE);
          ASSERT_EQ(cu.cuMemPoolImportPointer(&a, pools[n], &parcels[n].data), CUDA_SUCCESS);
          EXPECT_EQ(cu.read<int>(a), 31 + n);
        }
        line::say(end, 1);
      });
}

}  // namespace processes_test
