"""The brightness of every pixel is changed by a loop in Python."""

import sys
from pathlib import Path

import cv2
import torch
from torch.utils.data import DataLoader, Dataset

import iobench


class Pictures(Dataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).rglob("*.jpg"))

    def __len__(self):
        return len(self.paths)

    def brighter(self, pixels, by):
        for row in pixels:
            for pixel in row:
                for colour in range(3):
                    pixel[colour] = min(255, int(pixel[colour]) + by)
        return pixels

    def __getitem__(self, i):
        pixels = cv2.resize(cv2.imread(str(self.paths[i])), (64, 64))
        pixels = self.brighter(pixels, 10).transpose(2, 0, 1)
        return torch.from_numpy(pixels).float() / 255, i % 10


def main(folder):
    torch.set_num_threads(1)
    loader = DataLoader(Pictures(folder), batch_size=32, shuffle=True, num_workers=1)
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
