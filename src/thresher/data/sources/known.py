"""The data sets that `thresher data get` knows by name; no import but of names."""

NAMES = ("digits", "cifar10", "cifar100", "fashion-mnist")

# What the published images come to: a file that gives another fingerprint is not that data set.
# (CIFAR-100 is told by the checksum of its archive.)
FINGERPRINTS = {
    "digits": "d0e0dce90a6096f189d3cbb5fc3bcd4b",
    "cifar10": "316c34dace551fb80b78eaa492caf36f",
    "fashion-mnist": "76b0f678d22ff501730e81b291689677",
}
