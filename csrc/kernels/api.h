// libaloft_kernels is built with hidden visibility: a kernel that another library calls
// (libopapi, libacl_op_compiler, libaloft_torch) is declared with this in its header.
#pragma once

#define ALOFT_KERNEL_API __attribute__((visibility("default")))
