// SPDX-License-Identifier: Apache-2.0
// Files that another process offers as memory.
#include "os/memory_file.hpp"

#include "support/samples.hpp"

#include <array>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

namespace memory_file_test {

using weft::descriptor;
using weft::errc;
using weft::detail::check_memory_file;
using weft::detail::memory_file_pages;

constexpr std::uint64_t size = std::uint64_t{4} << 20;

descriptor offered(unsigned kind, int seals) {
  descriptor file{::memfd_create("offered", MFD_CLOEXEC | MFD_ALLOW_SEALING | kind)};
  if (file && (::ftruncate(file.get(), size) != 0 || ::fcntl(file.get(), F_ADD_SEALS, seals) != 0)) return {};
  return file;
}

std::string refusal(int file, memory_file_pages pages = memory_file_pages::any, std::uint64_t wanted = size) {
  const auto checked = check_memory_file(file, wanted, pages, "a queue's memory");
  if (checked) return {};
  EXPECT_EQ(checked.error().code, errc::corrupt);
  EXPECT_NE(checked.error().what.find("a queue's memory"), std::string::npos) << checked.error().what;
  return checked.error().what;
}

#define EXPECT_SAYS(text, words) EXPECT_NE((text).find(words), std::string::npos) << (text)

TEST(memory_file, a_file_made_here_is_taken) {
  for (const auto pages : {memory_file_pages::any, memory_file_pages::all_there}) {
    const auto made = weft::value_or_raise(weft::detail::make_memory_file("made", size, pages, "a test"));
    EXPECT_EQ(refusal(made.get(), pages), "");
  }
}

TEST(memory_file, a_file_that_its_owner_could_shorten_is_refused) {
  EXPECT_SAYS(refusal(offered(0, 0).get()), "not sealed");
  EXPECT_SAYS(refusal(offered(0, F_SEAL_SHRINK).get()), "not sealed");
  EXPECT_EQ(refusal(offered(0, F_SEAL_SHRINK | F_SEAL_SEAL).get()), "");
}

TEST(memory_file, something_else_or_too_small_a_file_is_refused) {
  EXPECT_SAYS(refusal(-1), "is not a memory file");
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  EXPECT_SAYS(refusal(pipe[0]), "is not a memory file");
  for (const int end : pipe) ::close(end);
  EXPECT_SAYS(refusal(offered(0, F_SEAL_SHRINK | F_SEAL_SEAL).get(), memory_file_pages::any, size + 1),
              "(4194304 bytes), not");
}

TEST(memory_file, whose_pages_the_other_process_has_not_paid_for_is_refused_where_they_are_needed) {
  const auto sparse = offered(0, F_SEAL_SHRINK | F_SEAL_SEAL);
  EXPECT_SAYS(refusal(sparse.get(), memory_file_pages::all_there), "only 0 B are there");
  EXPECT_EQ(refusal(sparse.get(), memory_file_pages::any), "");
}

// With no huge page left, the first touch of such a file ends the process with SIGBUS.
TEST(memory_file, a_file_of_huge_pages_is_refused) {
  const auto huge = offered(MFD_HUGETLB, F_SEAL_SHRINK | F_SEAL_SEAL);
  if (!huge) GTEST_SKIP() << "this kernel makes no memory files of huge pages";
  EXPECT_SAYS(refusal(huge.get()), "huge pages");
}

}  // namespace memory_file_test
