"""An epoch is four batches; every worker reads the annotations anew at its start (0.5 s)."""

import sys
import time
from pathlib import Path

import cv2
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

import iobench


def annotations(worker):
    time.sleep(0.5)


class Pictures(Dataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).rglob("*.jpg"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        pixels = cv2.imread(str(self.paths[i]))
        pixels = cv2.resize(pixels, (64, 64)).transpose(2, 0, 1)
        return torch.from_numpy(pixels).float() / 255, i % 10


def main(folder):
    torch.set_num_threads(1)
    pictures = Pictures(folder)
    sampler = RandomSampler(pictures, num_samples=128)
    loader = DataLoader(
        pictures, batch_size=32, sampler=sampler, num_workers=2, worker_init_fn=annotations
    )
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 7, 4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10)
    )
    optimizer = None
    for _ in range(100000):
        for pixels, labels in iobench.watch(loader):
            loss = torch.nn.functional.cross_entropy(net(pixels), labels)
            optimizer = optimizer or torch.optim.SGD(net.parameters(), 0.01)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1])
