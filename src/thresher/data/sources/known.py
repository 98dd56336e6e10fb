"""The data sets that `thresher data get` knows by name; no import but of names."""

NAMES = ("digits", "cifar10", "cifar100", "fashion-mnist")
