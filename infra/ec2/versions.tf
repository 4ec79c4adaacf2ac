terraform {
  required_version = ">= 1.5, < 2.0"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.90, < 6.0"
    }
  }
}

provider "aws" {
  region = var.region

  # Its list of regions is as old as the provider: a region that opened later would be invalid.
  skip_region_validation = true

  # The default, 25, keeps asking for many minutes where a zone has no capacity. `adaptive` asks as often
  # as AWS answers, where it throttles: EC2 accepts five launches at once, and then two a second.
  max_retries = var.max_retries
  retry_mode  = "adaptive"

  default_tags {
    tags = local.all_tags
  }
}
