// SPDX-License-Identifier: Apache-2.0
#include "virtual_driver/driver/compiler.hpp"

#include "virtual_driver/driver/settings.hpp"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <spawn.h>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;  // NOLINT: POSIX

namespace weft::virtual_cuda {
namespace {

std::string hash_of(const std::string& text) {
  std::uint64_t a = 0xcbf29ce484222325ULL;
  std::uint64_t b = 0x84222325cbf29ce4ULL;
  for (const char c : text) {
    a = (a ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    b = (b + static_cast<unsigned char>(c)) * 0x9e3779b97f4a7c15ULL;
    b ^= b >> 29U;
  }
  char out[40];
  std::snprintf(out, sizeof out, "%016llx%016llx", static_cast<unsigned long long>(a),
                static_cast<unsigned long long>(b));
  return out;
}

bool read_whole(const std::string& path, std::string& text) {
  std::ifstream stream{path, std::ios::binary};
  if (!stream) return false;
  text.assign(std::istreambuf_iterator<char>{stream}, {});
  return true;
}

bool write_whole(const std::string& path, const std::string& text) {
  std::ofstream stream{path, std::ios::binary};
  stream << text;
  return static_cast<bool>(stream.flush());
}

int run_compiler(std::vector<std::string> words, const std::string& log) {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&files, 2, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  pid_t child = 0;
  const int failed = ::posix_spawnp(&child, arguments[0], &files, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (failed != 0) return failed;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

}  // namespace

compiled_text compile_text(const std::string& text, const std::vector<std::string>& options, const std::string& key,
                           const std::function<std::string(const std::string&)>& unit_of, bool may_be_kept) {
  constexpr const char* way = "2";  // of making a unit: a new number whenever unit_of makes another of the same text
  const settings& s = given();
  std::vector<std::string> words;
  std::istringstream compiler{s.compiler};  // "ccache g++" is two words
  for (std::string word; compiler >> word;) words.push_back(word);
  std::vector<std::string> preprocessing = words;
  preprocessing.insert(preprocessing.end(), {"-x", "c++", "-E", "-w"});
  preprocessing.insert(preprocessing.end(), options.begin(), options.end());
  for (const char* word :
       {"-x", "c++", "-O1", "-w", "-fPIC", "-shared", "-fno-exceptions", "-fno-rtti", "-ffp-contract=off",
        "-fno-math-errno", "-fno-gnu-unique", "-fno-strict-aliasing", "-fvisibility=default",
        "-Wl,-Bsymbolic",  // a kernel may be called as a function of the host's libraries is
        // an access that is not aligned is a fault, as on hardware
        "-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"}) {
    words.emplace_back(word);
  }
  for (const std::string& word : options) {
    if (word.rfind("-std", 0) == 0) words.push_back(word);  // the others are for the preprocessor
  }
  std::string whole_key = way + text + '\0' + key;
  for (const auto* const list : {&preprocessing, &words}) {
    for (const std::string& word : *list) whole_key += '\0' + word;
  }
  std::error_code ignored;
  const std::string folder = cache_folder();
  compiled_text out;
  if (folder.empty()) {
    out.log = "no folder for compiled kernels can be made: name one with WEFT_VIRTUAL_CUDA_CACHE";
    return out;
  }
  const std::string kept = folder + "/" + hash_of(whole_key) + ".so";
  if (may_be_kept && read_whole(kept, out.object)) {
    out.done = true;
    return out;
  }
  static std::atomic<int> number{0};
  const std::string own = folder + "/" + std::to_string(::getpid()) + "_" + std::to_string(number.fetch_add(1));
  const std::string source = own + ".cu";
  const std::string expanded = own + ".ii";
  const std::string object = own + ".so";
  const std::string log = own + ".log";
  const auto run = [&](std::vector<std::string>& list, const std::string& made) {
    list.insert(list.end(), {"-o", made, source});
    const int status = run_compiler(list, log);
    static_cast<void>(read_whole(log, out.log));
    if (status != 0 && out.log.empty()) out.log = "the compiler '" + s.compiler + "' cannot be run";
    return status == 0;
  };
  std::string preprocessed;
  if (!write_whole(source, text)) {
    out.log = "cannot write " + source;
  } else if (run(preprocessing, expanded) && read_whole(expanded, preprocessed) &&
             write_whole(source, unit_of(preprocessed)) && run(words, object) && read_whole(object, out.object)) {
    out.done = true;
    std::filesystem::rename(object, kept, ignored);  // whole at once for whoever else looks
  }
  for (const std::string& file : {source, expanded, log, object}) ::unlink(file.c_str());
  return out;
}

}  // namespace weft::virtual_cuda
