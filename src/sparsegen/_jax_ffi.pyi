"""The kernel's handlers for XLA, if jaxlib's headers were there to build them. See _kernel/jax_ffi.cpp."""

from typing import Any

API: str

def handlers(engine_address: int) -> dict[str, Any]: ...
