// no std::source_location: -std=c++20 -fsyntax-only
#include <source_location>
unsigned line(std::source_location where = std::source_location::current()) { return where.line(); }
