variable "cluster_id" {
  description = "Unique id: the value of the tag clusterctl:cluster on everything that is made."
  type        = string
  default     = "standalone"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,49}$", var.cluster_id))
    error_message = "cluster_id: a-z, 0-9 and dashes, beginning with a letter, at most 50 characters."
  }
}

variable "cluster_name" {
  description = "What people call the cluster: the value of the tag clusterctl:name."
  type        = string
  default     = "standalone"
}

variable "owner" {
  description = "Who makes the cluster: the value of the tag clusterctl:owner. Empty: no such tag."
  type        = string
  default     = ""
}

variable "client" {
  description = "The machine that the cluster is made from: the value of the tag clusterctl:client. Empty: no such tag."
  type        = string
  default     = ""
}

variable "shared" {
  description = "The folder that all nodes share: the value of the tag clusterctl:shared. Empty: no such tag."
  type        = string
  default     = ""
}

variable "tags" {
  description = "More tags on everything that is made, such as those that an organization demands."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for key in keys(var.tags) : key != "Name" && !can(regex("(?i)^(aws|clusterctl):", key))])
    error_message = "tags: Name, and keys that begin with aws: or clusterctl:, are reserved."
  }
}

variable "deadline" {
  description = "When the nodes end themselves, in UTC: the value of the tag clusterctl:deadline. Empty: no such tag."
  type        = string
  default     = ""
}

variable "region" {
  description = "Where everything is made."
  type        = string
  default     = "us-east-1"
}

variable "zone" {
  description = "The one availability zone of all nodes. Empty: the first that offers every instance type."
  type        = string
  default     = ""
}

variable "groups" {
  description = <<-EOT
    Groups of equal workers: a family of the table in catalog.tf.json, or an instance type, and how many.
    `image` names the kind of machine image (cpu, nvidia, amd) where the family does not say it;
    `numbers` are the numbers of the workers, by default one after the other over all groups;
    `placement` is whether the type may be in a cluster placement group; `disk` is the size of the root
    volume in GiB, 0: see the variable `disk`; `throughput` is its MB/s; those beyond 125 cost money.
  EOT
  type = list(object({
    family        = optional(string, "cpu")
    instance_type = optional(string, "")
    count         = number
    image         = optional(string, "")
    numbers       = optional(list(number), [])
    placement     = optional(bool, true)
    disk          = optional(number, 0)
    throughput    = optional(number, 125)
  }))
  default = [{ count = 2 }]

  validation {
    condition     = alltrue([for group in var.groups : group.count >= 1 && group.count == floor(group.count)])
    error_message = "groups: every group has one worker or more."
  }

  validation {
    condition     = alltrue([for group in var.groups : contains([0, group.count], length(group.numbers))])
    error_message = "groups: numbers, where given, name every worker of the group."
  }

  validation {
    condition     = alltrue([for group in var.groups : contains(["", "cpu", "nvidia", "amd"], group.image)])
    error_message = "groups: image is cpu, nvidia or amd."
  }
}

variable "launcher_type" {
  description = "Instance type of the launcher, which starts jobs and runs no ranks. Empty: none yet, while zones are tried."
  type        = string
  default     = "t3.micro"
}

variable "amis" {
  description = "Machine images by kind (launcher, cpu, nvidia, amd), instead of those that are looked up."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for kind in keys(var.amis) : contains(["launcher", "cpu", "nvidia", "amd"], kind)])
    error_message = "amis: the kinds are launcher, cpu, nvidia and amd."
  }
}

variable "disk" {
  description = "Size of every worker's root volume in GiB. 0: 100 for GPU images, 30 for others."
  type        = number
  default     = 0

  validation {
    condition     = var.disk == 0 || (var.disk >= 8 && var.disk <= 16384)
    error_message = "disk: 8 to 16384 GiB."
  }
}

variable "launcher_disk" {
  description = "Size of the launcher's root volume in GiB."
  type        = number
  default     = 30
}

variable "spot" {
  description = "Whether workers are spot instances. The launcher never is: it holds the jobs' records."
  type        = bool
  default     = false
}

variable "on_demand" {
  description = "Names of workers that are on-demand where the others are spot instances: the market had no room for them."
  type        = list(string)
  default     = []
}

variable "placement_group" {
  description = "Whether workers share a cluster placement group, where their types allow it (burstable ones do not)."
  type        = bool
  default     = true
}

variable "efa" {
  description = "Whether workers have Elastic Fabric Adapters, which only some types do: the others fail to start."
  type        = bool
  default     = false
}

variable "efa_cards" {
  description = "Kinds of the network interfaces (interface, efa, efa-only) of a type's network cards, the first card first. A type that is not named has one card."
  type        = map(list(string))
  default     = {}
}

variable "private" {
  description = "Whether workers have no public addresses: they reach the internet through a NAT gateway, or by the routes of subnet_id."
  type        = bool
  default     = false
}

variable "cidr" {
  description = "Addresses of the VPC: a /16. The nodes' subnet is its first /20, that of private workers the second."
  type        = string
  default     = "10.77.0.0/16"

  validation {
    condition     = can(cidrsubnet(var.cidr, 4, 0)) && endswith(var.cidr, "/16")
    error_message = "cidr: an IPv4 network such as 10.77.0.0/16."
  }
}

variable "subnet_id" {
  description = "A subnet that is there already, with a route to an internet gateway: no VPC is made. Empty: a network of the cluster's own."
  type        = string
  default     = ""
}

variable "launcher_subnet_id" {
  description = "The launcher's, where it is in another subnet of the same VPC than the workers (subnet_id). Empty: in the same."
  type        = string
  default     = ""
}

variable "ssh_cidr" {
  description = "From where the launcher accepts SSH: networks such as 203.0.113.7/32, with commas between them. Empty: from nowhere outside."
  type        = string
  default     = ""

  validation {
    condition     = alltrue([for network in compact(split(",", var.ssh_cidr)) : can(cidrhost(network, 0))])
    error_message = "ssh_cidr: addresses with a prefix, such as 203.0.113.7/32,198.51.100.0/24."
  }
}

variable "instance_connect" {
  description = "Whether SSH comes to the launcher through an EC2 Instance Connect Endpoint. With `private`, the launcher has no public address either."
  type        = bool
  default     = false
}

variable "endpoint_groups" {
  description = "Security groups of the endpoint that the VPC has already: a VPC can have one. Empty: one is made."
  type        = list(string)
  default     = []
}

variable "public_key" {
  description = "An OpenSSH public key to let in. Empty: no key pair is made."
  type        = string
  default     = ""
}

variable "ttl_hours" {
  description = "Hours after which every node terminates itself, where user_data says nothing else."
  type        = number
  default     = 8

  validation {
    condition     = var.ttl_hours > 0
    error_message = "ttl_hours: more than nothing."
  }
}

variable "user_data" {
  description = "User data by node name. It counts when a node is made; later changes are ignored."
  type        = map(string)
  default     = {}
  sensitive   = true
}

variable "max_retries" {
  description = "How often a request to AWS is tried."
  type        = number
  default     = 5
}

variable "multinode_mpi" {
  description = "Whether to make a launcher and two workers that are used by hand: see README.md. clusterctl does not."
  type        = bool
  default     = false
}

variable "worker_type" {
  description = "Instance type of the two workers of `multinode_mpi`, such as g4dn.xlarge."
  type        = string
  default     = "t3.xlarge"
}

variable "mesh_key" {
  description = "The private key, in a file with its public half in FILE.pub beside it, with which nodes of `multinode_mpi` log in to each other."
  type        = string
  default     = "mesh_key"
}
