"""Every worker's library of tensors has 16 threads, as on the big node the script comes from."""

import sys
from pathlib import Path

import cv2
import torch
from torch.utils.data import DataLoader, Dataset

import iobench


def threads(worker):
    torch.set_num_threads(16)


class Pictures(Dataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).rglob("*.jpg"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        pixels = torch.from_numpy(cv2.imread(str(self.paths[i])))
        pixels = pixels.permute(2, 0, 1)[None].float() / 255
        pixels = torch.nn.functional.interpolate(pixels, (64, 64), mode="bilinear", antialias=True)
        return pixels[0], i % 10


def main(folder):
    torch.set_num_threads(16)
    loader = DataLoader(
        Pictures(folder), batch_size=32, shuffle=True, num_workers=2, worker_init_fn=threads
    )
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
