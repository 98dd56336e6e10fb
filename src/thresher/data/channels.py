"""Show images of any number of channels."""

import numpy as np


def shown_channels(images: np.ndarray) -> np.ndarray:
    """Return images (…, channels) with one channel, or with three, as people can look at them.

    Of two channels, grey and alpha, the first is shown, of four and more the first three.
    """
    channels = images.shape[-1]
    return images[..., : 1 if channels < 3 else 3]
