"""The pictures are in one zip archive, which is opened again for every picture."""

import sys
import zipfile
from pathlib import Path

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import iobench


class Pictures(Dataset):
    def __init__(self, folder):
        self.archive = Path(folder) / "pictures.zip"
        paths = sorted(Path(folder).rglob("*.jpg"))
        if not self.archive.exists():
            with zipfile.ZipFile(self.archive, "w") as archive:
                for copy in range(4):
                    for path in paths:
                        archive.write(path, f"{copy}/{path.name}")
        with zipfile.ZipFile(self.archive) as archive:
            self.names = archive.namelist()

    def __len__(self):
        return len(self.names)

    def read(self, name):
        with zipfile.ZipFile(self.archive) as archive:
            return archive.read(name)

    def __getitem__(self, i):
        data = np.frombuffer(self.read(self.names[i]), np.uint8)
        pixels = cv2.resize(cv2.imdecode(data, cv2.IMREAD_COLOR), (64, 64)).transpose(2, 0, 1)
        return torch.from_numpy(pixels).float() / 255, i % 10


def main(folder):
    torch.set_num_threads(1)
    loader = DataLoader(Pictures(folder), batch_size=32, shuffle=True, num_workers=2)
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
