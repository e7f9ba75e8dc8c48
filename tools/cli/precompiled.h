// The headers that the command lines of the programs include, precompiled. Used by the build (ouro_cold in
// tools/CMakeLists.txt). No file includes this header; every file includes what it needs.
#pragma once
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>
