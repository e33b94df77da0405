// How much of each virtual device is in use, by this process and by the others of the host.
#pragma once
#include <cstdint>

namespace aloft {

// False when the device has not that much left. Counts whole pages handed out, touched or not.
bool take_capacity(int device, uint64_t bytes);
void give_capacity(int device, uint64_t bytes);
uint64_t peak_use(int device);  // of this process

}  // namespace aloft
