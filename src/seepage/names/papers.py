"""The papers that attacks, defenses and metrics come from, by how docstrings cite them."""

from __future__ import annotations

import re

_CITED = re.compile(r"[A-Z][A-Za-z]+(?: et al\.| (?:and|&) [A-Z][a-z]+)? \d{4}b?")

PAPERS: dict[str, str] = {
    "Abadi et al. 2016": "Deep Learning with Differential Privacy. CCS 2016, arXiv:1607.00133",
    "Balunovic et al. 2022": "Bayesian Framework for Gradient Leakage. ICLR 2022, arXiv:2111.04706",
    "Balunovic et al. 2022b": "LAMP: Extracting Text from Gradients with Language Model Priors. NeurIPS "
    "2022, arXiv:2202.08827",
    "Boenisch et al. 2021": "When the Curious Abandon Honesty: Federated Learning Is Not Private. "
    "EuroS&P 2023, arXiv:2112.02918",
    "Deng et al. 2021": "TAG: Gradient Attack on Transformer-based Language Models. Findings of EMNLP 2021, "
    "arXiv:2103.06819",
    "Dimitrov et al. 2024": "SPEAR: Exact Gradient Inversion of Batches in Federated Learning. NeurIPS 2024, "
    "arXiv:2403.03945",
    "Fowl et al. 2021": "Robbing the Fed: Directly Obtaining Private Data in Federated Learning with "
    "Modified Models. ICLR 2022, arXiv:2110.13057",
    "Garov et al. 2024": "Hiding in Plain Sight: Disguising Data Stealing Attacks in Federated Learning. "
    "ICLR 2024, arXiv:2306.03013",
    "Geiping et al. 2020": "Inverting Gradients - How easy is it to break privacy in federated learning? "
    "NeurIPS 2020, arXiv:2003.14053",
    "Jeter et al. 2024": "OASIS: Offsetting Active Reconstruction Attacks in Federated Learning. ICDCS 2024, "
    "arXiv:2311.13739",
    "Lu et al. 2021": "APRIL: Finding the Achilles' Heel on Privacy for Vision Transformers. CVPR 2022, "
    "arXiv:2112.14087",
    "McMahan et al. 2018": "Learning Differentially Private Recurrent Language Models. ICLR 2018, "
    "arXiv:1710.06963",
    "Melis et al. 2019": "Exploiting Unintended Feature Leakage in Collaborative Learning. IEEE S&P 2019, "
    "arXiv:1805.04049",
    "Nowak et al. 2024": "QBI: Quantile-Based Bias Initialization for Efficient Private Data Reconstruction "
    "in Federated Learning. arXiv:2406.18745",
    "Lam et al. 2021": "Gradient Disaggregation: Breaking Privacy in Federated Learning by Reconstructing "
    "the User Participant Matrix. ICML 2021, arXiv:2106.06089",
    "Pasquini et al. 2022": "Eluding Secure Aggregation in Federated Learning via Model Inconsistency. CCS "
    "2022, arXiv:2111.07380",
    "Petrov et al. 2024": "DAGER: Exact Gradient Inversion for Large Language Models. NeurIPS 2024, "
    "arXiv:2405.15586",
    "Sun et al. 2021": "Soteria: Provable Defense against Privacy Leakage in Federated Learning from "
    "Representation Perspective. CVPR 2021, arXiv:2012.06043",
    "Wang et al. 2004": "Image Quality Assessment: From Error Visibility to Structural Similarity. IEEE "
    "Transactions on Image Processing 13(4)",
    "Wen et al. 2022": "Fishing for User Data in Large-Batch Federated Learning via Gradient Magnification. "
    "ICML 2022, arXiv:2202.00580",
    "Yin et al. 2021": "See through Gradients: Image Batch Recovery via GradInversion. CVPR 2021, "
    "arXiv:2104.07586",
    "Zhao et al. 2020": "iDLG: Improved Deep Leakage from Gradients. arXiv:2001.02610",
    "Zhu and Blaschko 2021": "R-GAP: Recursive Gradient Attack on Privacy. ICLR 2021, arXiv:2010.07733",
    "Zhu et al. 2019": "Deep Leakage from Gradients. NeurIPS 2019, arXiv:1906.08935",
}


def cited(text: str) -> dict[str, str]:
    """The papers that a text cites: their titles, or nothing where they are not in the list.

    >>> cited("Inverting Gradients (Geiping et al. 2020); Hines 1975.")["Hines 1975"]
    ''
    """
    found = dict.fromkeys(one.replace(" & ", " and ") for one in _CITED.findall(" ".join(text.split())))
    return {name: PAPERS.get(name, "") for name in found}
