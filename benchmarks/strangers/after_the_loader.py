"""The workers only read; the loop itself decodes and crops."""

import sys
from pathlib import Path

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import iobench


def decoded(data):
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    return torch.from_numpy(cv2.resize(pixels, (64, 64)).transpose(2, 0, 1)).float() / 255


class Pictures(Dataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).rglob("*.jpg"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return self.paths[i].read_bytes(), i % 10


def main(folder):
    torch.set_num_threads(1)
    loader = DataLoader(
        Pictures(folder), batch_size=32, shuffle=True, num_workers=2, collate_fn=list
    )
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 7, 4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10)
    )
    optimizer = None
    for _ in range(1000):
        for batch in iobench.watch(loader):
            pixels = torch.stack([decoded(data) for data, _ in batch])
            labels = torch.tensor([label for _, label in batch])
            loss = torch.nn.functional.cross_entropy(net(pixels), labels)
            optimizer = optimizer or torch.optim.SGD(net.parameters(), 0.01)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1])
