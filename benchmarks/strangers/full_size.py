"""Photographs are decoded in full size to be made 64 pixels wide."""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import iobench


class Pictures(Dataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).rglob("*.jpg"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        picture = Image.open(self.paths[i]).convert("RGB")
        picture = picture.resize((1600, 1200), Image.Resampling.LANCZOS)
        pixels = np.array(picture.resize((64, 64), Image.Resampling.LANCZOS)).transpose(2, 0, 1)
        return torch.from_numpy(pixels).float() / 255, i % 10


def main(folder):
    torch.set_num_threads(1)
    loader = DataLoader(Pictures(folder), batch_size=32, shuffle=True)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 7, 4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10)
    )
    optimizer = None
    for _ in range(1000):
        for pixels, labels in iobench.watch(loader):
            loss = torch.nn.functional.cross_entropy(net(pixels), labels)
            optimizer = optimizer or torch.optim.SGD(net.parameters(), 0.01)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1])
