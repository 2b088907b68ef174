import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Numbers are compared to the last bit, also with those of another process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
