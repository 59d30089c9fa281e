"""Whether an NVIDIA driver and a device are here: asked of the driver itself, so that no framework is needed."""

import ctypes
from typing import Final

DRIVER: Final = "libcuda.so.1"


def driver_problem() -> str | None:
    """Return what is missing for CUDA on this machine, in the driver's words where it has some, or None."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError as error:
        return f"the NVIDIA driver is not installed: {error}"
    status = driver.cuInit(0)
    if status != 0:
        return f"the NVIDIA driver does not start: {_words(driver, status)}"
    count = ctypes.c_int(0)
    status = driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0:
        return f"the NVIDIA driver lists no devices: {_words(driver, status)}"
    return None if count.value else "the NVIDIA driver is here, but no device"


def _words(driver: ctypes.CDLL, status: int) -> str:
    text = ctypes.c_char_p()
    if driver.cuGetErrorString(status, ctypes.byref(text)) == 0 and text.value:
        return f"{text.value.decode()} (error {status})"
    return f"error {status}"
