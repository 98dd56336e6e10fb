"""A training script of your own, which the study any-command.toml runs: scikit-learn on digits."""

import argparse

from sklearn.linear_model import SGDClassifier

from thresher import Pack, Selection, report_result

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, required=True)
parser.add_argument("--alpha", type=float, required=True)
parser.add_argument("--keep", required=True, help='"full", or a selection')
parser.add_argument("--out", required=True)
options = parser.parse_args()

pack = Pack.open("digits")
train, test = pack.indices("train"), pack.indices("test")
if options.keep != "full":
    train = Selection.load(options.keep).indices(pack)

model = SGDClassifier(alpha=options.alpha, random_state=options.seed)
model.fit(pack.images(train).reshape(len(train), -1) / 255, pack.labels[train])
predicted = model.predict(pack.images(test).reshape(len(test), -1) / 255)
accuracy = (predicted == pack.labels[test]).mean()
report_result(options.out, accuracy=accuracy, train_images=len(train))
